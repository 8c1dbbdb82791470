"""The recipes of Hinton, Sabour, Frosst 2018, and our own recipes for its networks.

The paper states neither learning rate nor cost scale, nor the strength of its random brightness and contrast. The first
two were chosen by validation.
"""

from dataclasses import replace

from capsella.data import NamedData
from capsella.losses import LossOptions
from capsella.routing import EMRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe

# Scaled by this factor, β_a can be learned; otherwise the small network with two iterations stays at chance on digits.
BETA_A_SCALE = 2500.0
FROM_PHOTOGRAPHS = {"brightness": 0.2, "contrast": 0.2}
MOVED_AND_MIXED = AugmentOptions(rotation=10.0, stretch=0.15, mixup=0.2)
CROPPED = {"crop": 32, **FROM_PHOTOGRAPHS}


@register_recipe
def hinton2018_smallnorb() -> Recipe:
    """Matrix capsules on smallNORB (§5): 48×48, random crops of 32×32, random brightness and contrast.

    One toy in five of each category is held out for validation, since the test toys are new, too.
    """
    options = {"routing": EMRouting(iterations=3, cost_scale=100.0), **CROPPED}
    return Recipe(
        model=ModelOptions("hinton2018_matrix_capsnet", options),
        data=NamedData("smallnorb", size=48, group="instance", validation=0.2),
        loss=LossOptions(name="spread"),
        optimizer=OptimizerOptions(learning_rate=1e-3, gradient_clip=10.0),
        batch_size=64,
    )


@register_recipe
def hinton2018_smallnorb_small() -> Recipe:
    """The small matrix capsules (68 K parameters) on smallNORB."""
    return hinton2018_smallnorb().with_network("hinton2018_matrix_capsnet_small")


@register_recipe
def hinton2018_smallnorb_cnn() -> Recipe:
    """The paper's CNN baseline on smallNORB, with the same crops and changes of brightness and contrast."""
    return _baseline(hinton2018_smallnorb())


@register_recipe
def matrix_capsnet_smallnorb() -> Recipe:
    """The small matrix capsules on smallNORB in an hour on one core; our recipe.

    A β_a that can be learned, two iterations, a cosine schedule, averaged weights, augmentation, and both cameras. All
    five toys of each category are trained on; a few of their images are held out.
    """
    paper = hinton2018_smallnorb_small()
    return replace(
        paper.with_model(routing=EMRouting(iterations=2, cost_scale=100.0, beta_a_scale=BETA_A_SCALE)),
        data=paper.data.replace(camera="both", group=None, validation=0.02),
        augment=MOVED_AND_MIXED,
        optimizer=OptimizerOptions(3e-3, schedule="cosine", warmup_steps=300, gradient_clip=10.0, ema=0.999),
        epochs=25,
        batch_size=32,
        keep="last",
        precision="auto",
    )


@register_recipe
def matrix_capsnet_smallnorb_310k() -> Recipe:
    """The large matrix capsules (310 K parameters), trained like the small ones for 16 epochs; our recipe."""
    small = matrix_capsnet_smallnorb().with_network("hinton2018_matrix_capsnet")
    return replace(small, epochs=16, precision="32-true")


@register_recipe
def batchnorm_capsnet_smallnorb() -> Recipe:
    """Our matrix capsules behind a batch-normalised stem, on whole images of 48×48; chosen on held-out toys."""
    small = matrix_capsnet_smallnorb()
    options = {"routing": small.model.options["routing"], **FROM_PHOTOGRAPHS}
    return replace(
        small,
        model=ModelOptions("batchnorm_matrix_capsnet", options),
        augment=replace(MOVED_AND_MIXED, shift=4, padding_mode="border"),
    )


@register_recipe
def batchnorm_cnn_smallnorb() -> Recipe:
    """A CNN of 144 K parameters to compare with batchnorm-capsnet-smallnorb: the same augmentation and training."""
    options = {"standardise": True, **FROM_PHOTOGRAPHS}
    return replace(
        batchnorm_capsnet_smallnorb(),
        model=ModelOptions("hahn2019_convnet_cnn", options),
        loss=LossOptions(name="cross_entropy"),
    )


@register_recipe
def hinton2018_mnist() -> Recipe:
    """Matrix capsules on MNIST (§5), on whole images with random shifts, trained as on smallNORB."""
    smallnorb = hinton2018_smallnorb()
    options = {"routing": EMRouting(iterations=3, cost_scale=100.0, beta_a_scale=BETA_A_SCALE)}
    return replace(
        smallnorb,
        model=ModelOptions("hinton2018_matrix_capsnet", options),
        data=NamedData("mnist"),
        augment=AugmentOptions(shift=2),
    )


@register_recipe
def hinton2018_cifar10() -> Recipe:
    """Matrix capsules on CIFAR-10 (§5): 256 feature maps in the stem, and random brightness and contrast."""
    return replace(
        hinton2018_mnist().with_model(maps=256, **FROM_PHOTOGRAPHS),
        data=NamedData("cifar10"),
        augment=AugmentOptions(shift=4, padding_mode="border"),
    )


@register_recipe
def hinton2018_fashion_mnist() -> Recipe:
    """Matrix capsules on Fashion-MNIST, which the paper does not have, trained as on MNIST."""
    return replace(hinton2018_mnist(), data=NamedData("fashion-mnist"))


@register_recipe
def hinton2018_azimuth() -> Recipe:
    """Matrix capsules on a third of the azimuths, to be tested on the others (§5.1).

    Stopped at the CNN's error, measured on test toys from the training viewpoints; the actual test is on novel
    viewpoints. So validation, which stops nothing, holds out images instead of toys.
    """
    return replace(
        hinton2018_smallnorb(),
        data=NamedData(
            "smallnorb", size=48, viewpoints="azimuth", test_viewpoints="familiar", validation_per_class=100
        ),
        epochs=500,
        epoch_images=2_000,
        stop_at_error=3.7,
        stop_on="test",
    )


@register_recipe
def hinton2018_azimuth_cnn() -> Recipe:
    """The paper's CNN baseline on the same azimuths (§5.1)."""
    return _baseline(hinton2018_azimuth())


@register_recipe
def hinton2018_elevation() -> Recipe:
    """Matrix capsules on a third of the elevations, to be tested on the others (§5.1)."""
    azimuth = hinton2018_azimuth()
    return replace(azimuth, data=azimuth.data.replace(viewpoints="elevation"), stop_at_error=4.3)


@register_recipe
def hinton2018_elevation_cnn() -> Recipe:
    """The paper's CNN baseline on the same elevations (§5.1)."""
    return _baseline(hinton2018_elevation())


@register_recipe
def hinton2018_toys() -> Recipe:
    """The small matrix capsules on toys that this package renders, with one in three held out; needs no download."""
    small = hinton2018_smallnorb_small()
    return replace(small, data=replace(small.data.on("toys"), validation=0.3), epochs=20)


def _baseline(recipe: Recipe) -> Recipe:
    """Return the CNN baseline's recipe on the images of a matrix-capsule recipe."""
    options = {**CROPPED, "dropout": 0.5}
    return replace(recipe, model=ModelOptions("hinton2018_cnn", options), loss=LossOptions(name="cross_entropy"))
