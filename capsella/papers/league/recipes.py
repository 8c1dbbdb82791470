"""The recipes of the league, one for each set of images; every row trains by them, with another network."""

from dataclasses import replace

from capsella.data import DataOptions
from capsella.papers.hinton2018.recipes import MOVED_AND_MIXED
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe

STEREO = {"crop": 32, "brightness": 0.2, "contrast": 0.2}
"""How networks change smallNORB's images."""
RATE = 3e-3


@register_recipe
def league_smallnorb() -> Recipe:
    """A capsule network of 128,000 parameters on smallNORB, with any routing; ours.

    Both cameras, one toy of each category for validation. Images turn, stretch, and are mixed in pairs, as in our best
    trainings on this set (LOG.md, L051). A routing whose activations are not lengths takes
    `--loss.name cross_entropy`, as the league's rows do.
    """
    return Recipe(
        model=ModelOptions("league_capsnet", STEREO),
        data=DataOptions(name="smallnorb", size=48, camera="both", group="instance", validation=0.2),
        augment=MOVED_AND_MIXED,
        optimizer=OptimizerOptions(learning_rate=RATE, schedule="cosine", warmup_steps=500, ema=0.999),
        epochs=60,
        epoch_images=24_000,
        batch_size=32,
        keep="last",
    )


@register_recipe
def league_elevation() -> Recipe:
    """The same network on a third of the elevations of smallNORB, to be stopped at one error on those of other toys.

    Validation is of images of the training's toys: no toy is held out. Images do not turn: that would change what an
    elevation never seen is.
    """
    smallnorb = league_smallnorb()
    return replace(
        smallnorb,
        data=replace(smallnorb.data, group=None, validation=0.1, viewpoints="elevation", test_viewpoints="familiar"),
        augment=AugmentOptions(),
        optimizer=OptimizerOptions(learning_rate=RATE, decay=1.0, warmup_steps=100, ema=0.99),
        epochs=500,
        epoch_images=2_000,
        keep="best",
    )


@register_recipe
def league_digits() -> Recipe:
    """The same network on digits at random places of 40×40, to be tested on digits under affine maps, too."""
    return replace(
        league_smallnorb(),
        model=ModelOptions("league_capsnet"),
        data=DataOptions(name="mnist40"),
        augment=AugmentOptions(shift=6),
    )


@register_recipe
def league_cells() -> Recipe:
    """The same network on blood cells of one laboratory, to be tested on those of another one, too."""
    return replace(
        league_smallnorb(),
        model=ModelOptions("league_capsnet"),
        data=DataOptions(name="pbc", size=40, channels=3, cells="matched"),
        augment=AugmentOptions(shift=3, border="repeat", flip=True, rotation=180.0),
    )


@register_recipe
def league_photographs() -> Recipe:
    """The same network on CIFAR-10, shifted and mirrored."""
    return replace(
        league_smallnorb(),
        model=ModelOptions("league_capsnet"),
        data=DataOptions(name="cifar10"),
        augment=AugmentOptions(shift=4, mirror=True),
    )
