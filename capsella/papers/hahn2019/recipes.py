"""The recipes of Hahn, Pyeon, Kim 2019, as in the authors' code, but for what stands in each.

Loss of all: −ln of the true class's activation, which is a cross-entropy of the activations' logarithms.
"""

from dataclasses import replace

from capsella.data import DataOptions
from capsella.losses import LossOptions
from capsella.routing import DynamicRouting, EMRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe


@register_recipe
def hahn2019_cifar10() -> Recipe:
    """Self-routing behind ResNet-20 on CIFAR-10, two capsule layers; batches of 64, 350 epochs.

    The authors also normalise the colours by the set's mean and deviation; batch normalisation behind the first
    convolution, which has no bias, does nearly the same.
    """
    return Recipe(
        model=ModelOptions("hahn2019_resnet20"),
        data=DataOptions(name="cifar10"),
        augment=AugmentOptions(shift=4, mirror=True),
        loss=LossOptions(name="cross_entropy"),
        optimizer=OptimizerOptions(
            method="sgd", learning_rate=0.1, l2=1e-4, schedule="steps", decay=0.1, drops=(150 / 350, 250 / 350)
        ),
        epochs=350,
        batch_size=64,
    )


@register_recipe
def hahn2019_cifar10_dynamic() -> Recipe:
    """The same network with dynamic routing."""
    return hahn2019_cifar10().with_model(routing=DynamicRouting(iterations=3))


@register_recipe
def hahn2019_cifar10_em() -> Recipe:
    """The same network with EM routing, but vectors for poses, where the authors have 4×4 matrices."""
    return hahn2019_cifar10().with_model(routing=EMRouting(iterations=3, competition="types"))


@register_recipe
def hahn2019_cifar10_cnn() -> Recipe:
    """ResNet-20 with average pooling, trained alike."""
    return replace(hahn2019_cifar10(), model=ModelOptions("hahn2019_resnet20_cnn"))


@register_recipe
def hahn2019_azimuth() -> Recipe:
    """Self-routing on a third of smallNORB's azimuths, tested on the others; batches of 64, 200 epochs.

    The authors train on the images of both cameras, one by one, and change brightness and contrast by factors; here it
    is the left camera, and brightness is added. They keep the epoch that is best on the novel viewpoints, here it is
    the best on images held out of the training.
    """
    options = {"crop": 32, "brightness": 32 / 255, "contrast": 0.3}
    return Recipe(
        model=ModelOptions("hahn2019_convnet", options),
        data=DataOptions(name="smallnorb", size=48, viewpoints="azimuth", test_viewpoints="novel"),
        loss=LossOptions(name="cross_entropy"),
        optimizer=OptimizerOptions(
            method="sgd", learning_rate=0.1, l2=1e-4, schedule="steps", decay=0.1, drops=(0.5, 0.75)
        ),
        epochs=200,
        batch_size=64,
    )


@register_recipe
def hahn2019_azimuth_cnn() -> Recipe:
    """The same convolutions with average pooling."""
    return _pooled(hahn2019_azimuth())


@register_recipe
def hahn2019_elevation() -> Recipe:
    """Self-routing on a third of smallNORB's elevations, tested on the others."""
    azimuth = hahn2019_azimuth()
    return replace(azimuth, data=replace(azimuth.data, viewpoints="elevation"))


@register_recipe
def hahn2019_elevation_cnn() -> Recipe:
    """The same convolutions with average pooling."""
    return _pooled(hahn2019_elevation())


@register_recipe
def hahn2019_smallnorb() -> Recipe:
    """Self-routing on all viewpoints of smallNORB, trained as on a third; the poster has no such number."""
    azimuth = hahn2019_azimuth()
    return replace(azimuth, data=DataOptions(name="smallnorb", size=48, group="instance", validation=0.2))


def _pooled(recipe: Recipe) -> Recipe:
    return replace(recipe, model=ModelOptions("hahn2019_convnet_cnn", recipe.model.options))
