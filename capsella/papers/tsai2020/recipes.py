"""The recipes of Tsai, Srivastava, Goh, Salakhutdinov 2020, as in the authors' code."""

from capsella.data import DataOptions
from capsella.losses import LossOptions
from capsella.routing import InvertedAttentionRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe


@register_recipe
def tsai2020_cifar10() -> Recipe:
    """Inverted attention on CIFAR-10, two rounds of all layers at once; batches of 128, 350 epochs.

    The authors also normalise the colours by the set's mean and deviation; batch normalisation behind the first
    convolution, which has no bias, does nearly the same. They keep the epoch that is best on the test images; here it
    is the best on images held out of the training.
    """
    return Recipe(
        model=ModelOptions("tsai2020_resnet", {"routing": InvertedAttentionRouting(iterations=2)}),
        data=DataOptions(name="cifar10"),
        augment=AugmentOptions(shift=4, mirror=True),
        loss=LossOptions(name="cross_entropy"),
        optimizer=OptimizerOptions(
            method="sgd", learning_rate=0.1, l2=5e-4, schedule="steps", decay=0.1, drops=(150 / 350, 250 / 350)
        ),
        epochs=350,
        batch_size=128,
    )


@register_recipe
def tsai2020_smallnorb() -> Recipe:
    """Inverted attention on smallNORB, which the paper does not have, trained as on CIFAR-10; images of 32×32."""
    recipe = tsai2020_cifar10()
    return Recipe(
        model=recipe.model,
        data=DataOptions(name="smallnorb", size=32, group="instance", validation=0.2),
        augment=AugmentOptions(shift=4, border="repeat"),
        loss=recipe.loss,
        optimizer=recipe.optimizer,
        epochs=50,
        batch_size=recipe.batch_size,
    )
