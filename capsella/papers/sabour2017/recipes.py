"""The recipes of Sabour, Frosst, Hinton 2017, and recipes for its network and baseline on other images."""

from dataclasses import replace

from capsella.data import NamedData, PairData
from capsella.losses import LossOptions
from capsella.routing import DynamicRouting, RandomRouting, UniformRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe


@register_recipe
def sabour2017_mnist() -> Recipe:
    """CapsNet on MNIST, as its authors trained it (§4 and §5).

    Primary capsules and the initial weights of both convolutions follow the authors' code; otherwise its learning rate
    would be too high.
    """
    options = {
        "routing": DynamicRouting(iterations=3),
        "primary_relu": False,
        "uniform_primary_couplings": True,
        "reconstruction": True,
    }
    return Recipe(
        model=ModelOptions("sabour2017_capsnet", options),
        data=NamedData("mnist"),
        augment=AugmentOptions(shift=2),
    )


@register_recipe
def sabour2017_mnist_uniform() -> Recipe:
    """CapsNet on MNIST with uniform couplings, to see what routing contributes."""
    return sabour2017_mnist().with_model(routing=UniformRouting())


@register_recipe
def sabour2017_mnist_random() -> Recipe:
    """CapsNet on MNIST with random couplings that never change."""
    return sabour2017_mnist().with_model(routing=RandomRouting())


@register_recipe
def sabour2017_mnist_cnn() -> Recipe:
    """The paper's CNN baseline on MNIST, trained with cross-entropy."""
    return _baseline(sabour2017_mnist(), ModelOptions("sabour2017_cnn", {"dropout": 0.5}))


@register_recipe
def sabour2017_multimnist() -> Recipe:
    """CapsNet on pairs of digits (§6).

    An epoch has as many pairs as MNIST has digits. The test uses 10,000 of the 10 million test pairs.
    """
    return replace(
        sabour2017_mnist(),
        data=PairData(of="mnist", validation_pairs=10_000, test_pairs=10_000),
        augment=AugmentOptions(),
        optimizer=OptimizerOptions(decay_steps=20_000),
        epoch_images=60_000,
    )


@register_recipe
def sabour2017_multimnist_cnn() -> Recipe:
    """The paper's CNN baseline on pairs of digits (§6)."""
    return replace(
        sabour2017_multimnist(),
        model=ModelOptions("sabour2017_multimnist_cnn"),
        loss=LossOptions(name="sigmoid_cross_entropy"),
        optimizer=OptimizerOptions(learning_rate=1e-4, decay_steps=20_000),
    )


@register_recipe
def sabour2017_affnist() -> Recipe:
    """CapsNet on digits at random places of 40×40, to be tested on affNIST (§5.2).

    As in the paper, training stops at an error on MNIST's test images, placed at random; affNIST is the actual test.
    """
    return replace(
        sabour2017_mnist(),
        data=NamedData("mnist40"),
        augment=AugmentOptions(shift=6),
        epochs=600,
        epoch_images=5_000,
        stop_at_error=0.77,
        stop_on="test",
    )


@register_recipe
def sabour2017_affnist_cnn() -> Recipe:
    """The paper's CNN baseline for affNIST, stopped at the same error (§5.2)."""
    return _baseline(sabour2017_affnist(), ModelOptions("sabour2017_affnist_cnn", {"dropout": 0.5}))


@register_recipe
def sabour2017_fashion_mnist() -> Recipe:
    """CapsNet on Fashion-MNIST, which the paper does not have, trained as on MNIST."""
    return replace(sabour2017_mnist(), data=NamedData("fashion-mnist"))


@register_recipe
def sabour2017_cifar10() -> Recipe:
    """CapsNet on CIFAR-10 (§7), on whole images with random shifts; the paper trains on random crops of 24×24.

    The routing's softmax has a "none of the above" class, as in the paper.
    """
    leaky = DynamicRouting(iterations=3, leaky=True)
    return replace(
        sabour2017_mnist().with_model(uniform_primary_couplings=False, primary_types=64, routing=leaky),
        data=NamedData("cifar10"),
        augment=AugmentOptions(shift=4),
        optimizer=OptimizerOptions(learning_rate=1e-4),
    )


@register_recipe
def sabour2017_smallnorb() -> Recipe:
    """CapsNet on smallNORB (§7), on whole images of 32×32; the paper crops 32×32 from 48×48."""
    return replace(
        sabour2017_mnist().with_model(uniform_primary_couplings=False),
        data=NamedData("smallnorb", size=32, group="instance", validation=0.2),
        optimizer=OptimizerOptions(learning_rate=1e-4),
    )


@register_recipe
def sabour2017_cells() -> Recipe:
    """CapsNet on white blood cells of 32×32, also flipped; our recipe.

    At the paper's learning rate, bright images drive the class capsules' lengths to 1, where the margin loss has no
    gradient.
    """
    return replace(
        sabour2017_mnist().with_model(uniform_primary_couplings=False),
        data=NamedData("pbc-subset", size=32),
        augment=AugmentOptions(shift=2, padding_mode="border", flip=True),
        optimizer=OptimizerOptions(learning_rate=1e-4),
        epochs=30,
        batch_size=32,
    )


@register_recipe
def sabour2017_cells_cnn() -> Recipe:
    """The paper's CNN baseline on the same cells, at a learning rate chosen by validation; our recipe."""
    return _baseline(sabour2017_cells(), sabour2017_mnist_cnn().model, learning_rate=3e-5)


@register_recipe
def demo() -> Recipe:
    """CapsNet with a quarter of its primary capsules on scikit-learn's 1,797 digits: a minute on two cores."""
    return replace(
        sabour2017_mnist().with_model(uniform_primary_couplings=False, primary_types=8),
        data=NamedData("digits", size=20, validation=0.1),
        augment=AugmentOptions(shift=1),
        loss=LossOptions(reconstruction_weight=0.02),
        epochs=10,
        batch_size=16,
        optimizer=OptimizerOptions(decay_steps=200),
    )


def _baseline(recipe: Recipe, model: ModelOptions, learning_rate: float = 1e-4) -> Recipe:
    """Return a CNN's recipe on the images of a capsule network's recipe."""
    return replace(
        recipe,
        model=model,
        loss=LossOptions(name="cross_entropy"),
        optimizer=OptimizerOptions(learning_rate=learning_rate),
    )
