"""The recipes for images of one's own: which recipe trains which network on a folder, by name."""

from dataclasses import replace
from pathlib import Path

from capsella.data import DataOptions
from capsella.losses import LossOptions
from capsella.papers.forslov2018.recipes import CAPSNETS, CNNNETS, EMNETS
from capsella.papers.hinton2018.recipes import BETA_A_SCALE, hinton2018_smallnorb_small
from capsella.papers.sabour2017.recipes import sabour2017_cells, sabour2017_cells_cnn
from capsella.routing import EMRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import get_recipe, register_recipe

FOLDER = DataOptions(name="folder", path=Path("images"), size=32)
"""The images; the path is the least that one gives."""
RECIPE_OF = {
    "sabour2017_capsnet": "images-capsnet",
    "sabour2017_cnn": "images-cnn",
    "hinton2018_matrix_capsnet": "images-matrix-capsnet",
    "hinton2018_matrix_capsnet_small": "images-matrix-capsnet",
    "hinton2018_cnn": "hinton2018-smallnorb-cnn",
    "mazzia2021_efficient_capsnet": "mazzia2021-mnist",
    "he2016_resnet10": "he2016-cells",
    "stem_capsules": "images-stem-capsules",
    "stem_linear": "images-stem-linear",
    **{network: f"{network.replace('_', '-')}-modern" for network in (*CAPSNETS, *EMNETS, *CNNNETS)},
}
"""The recipe by which `capsella compare` trains a network; any other takes that of images-capsnet."""


@register_recipe
def images_capsnet() -> Recipe:
    """CapsNet on a folder of images, one sub-folder a class; in bfloat16 where that is faster (LOG.md, L041)."""
    return replace(sabour2017_cells(), data=FOLDER, precision="auto")


@register_recipe
def images_cnn() -> Recipe:
    """The baseline of CapsNet's paper on a folder of images, one sub-folder a class."""
    return replace(sabour2017_cells_cnn(), data=FOLDER)


@register_recipe
def images_matrix_capsnet() -> Recipe:
    """Small matrix capsules on a folder of images, one sub-folder a class.

    A β_a that can be learned, two iterations and three times the paper's rate: with these they learn on dark and on
    bright images in few steps; without them hardly on dark ones (LOG.md, L039).
    """
    paper = hinton2018_smallnorb_small()
    return replace(
        paper.with_model(routing=EMRouting(iterations=2, cost_scale=100.0, beta_a_scale=BETA_A_SCALE)),
        data=FOLDER,
        augment=AugmentOptions(shift=2, flip=True),
        optimizer=OptimizerOptions(learning_rate=3e-3, warmup_steps=100, gradient_clip=10.0),
        epochs=30,
        batch_size=32,
    )


@register_recipe
def images_stem_capsules() -> Recipe:
    """Class capsules on a network that was trained before (--stem), on a folder of images, one sub-folder a class.

    The stem is frozen; to train it too, --no-freeze and a tenth of the learning rate.
    """
    return _on_stem("stem_capsules", LossOptions())


@register_recipe
def images_stem_linear() -> Recipe:
    """A linear layer on a network that was trained before (--stem), on a folder of images, one sub-folder a class.

    The stem is frozen; to train it too, --no-freeze and a tenth of the learning rate.
    """
    return _on_stem("stem_linear", LossOptions(name="cross_entropy"))


def _on_stem(network: str, loss: LossOptions) -> Recipe:
    """The same for both heads but for the loss; which stem is for the user to say.

    A head on a frozen stem learns at three times the rate of a whole network: at 1e-3 the linear layer is far from its
    best after a hundred steps.
    """
    return Recipe(
        model=ModelOptions(network, {"stem": ""}),
        data=FOLDER,
        augment=AugmentOptions(shift=2, flip=True),
        loss=loss,
        optimizer=OptimizerOptions(learning_rate=3e-3),
        epochs=30,
        batch_size=32,
    )


def recipe_for(network: str) -> tuple[str, Recipe]:
    """The name of the recipe that trains a network on images of one's own, and the recipe without its paper's images.

    What concerns the paper's images is taken away: crops and changes of brightness, so that every network sees the same
    pictures. The margin of the spread loss rises over the whole training, however short it is.

    Raises:
        ValueError: no network has the name.
    """
    name = RECIPE_OF.get(network, "images-capsnet")
    recipe = get_recipe(name)
    if recipe.model.name != network:
        recipe = recipe.with_network(network)
    neutral = {"crop": None, "brightness": 0.0, "contrast": 0.0}
    changed = {option: neutral[option] for option in recipe.model.options if option in neutral}
    return name, replace(recipe.with_model(**changed), loss=replace(recipe.loss, spread_schedule="linear"))
