"""Recipes for a folder of your own images, adapted to the folder, and the recipe that a command line asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.data import FolderData, FolderSummary, inspect_folder
from capsella.data.folder import no_folder
from capsella.errors import ArgumentError, CapsellaError, check_argument
from capsella.losses import LossOptions
from capsella.papers.forslov2018.recipes import CAPSNETS, CNNNETS, EMNETS, emnet_modern
from capsella.papers.hinton2018.recipes import BETA_A_SCALE, hinton2018_smallnorb_small
from capsella.papers.sabour2017.recipes import sabour2017_cells, sabour2017_cells_cnn
from capsella.routing import EMRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe, read_recipe
from capsella.training.registry import get_recipe, list_recipes, register_recipe, with_fields

UNNAMED = Path("images")  # placeholder folder of these recipes
FOLDER = FolderData(UNNAMED, size=32)
# The recipe with which `capsella compare` trains each network. Other CNNs are trained as images-resnet, other capsules
# as images-efficient, but at OTHER_RATE and with the loss of their own paper's recipe.
RECIPE_OF = {
    "sabour2017_capsnet": "images-capsnet",
    "sabour2017_cnn": "images-cnn",
    "hinton2018_matrix_capsnet": "images-matrix-capsnet",
    "hinton2018_matrix_capsnet_small": "images-matrix-capsnet",
    "hinton2018_cnn": "hinton2018-smallnorb-cnn",
    "mazzia2021_efficient_capsnet": "images-efficient",
    "mazzia2021_average_pooling": "images-efficient",
    "mazzia2021_depthwise_linear": "images-efficient",
    "he2016_resnet10": "images-resnet",
    "backbone_capsules": "images-backbone-capsules",
    "backbone_linear": "images-backbone-linear",
    **{network: f"{network.replace('_', '-')}-modern" for network in (*CAPSNETS, *EMNETS, *CNNNETS)},
}
# At 0.0001, the rate of images-capsnet, and at 0.004, that of images-efficient, some of them hardly learn.
OTHER_RATE = 1e-3
PRETRAINED = "efficientnet_lite0"  # the default backbone
DEFAULT = "images-efficient"  # the recipe of `capsella train FOLDER`
# Images are resized to the largest of these that exceeds neither their own size nor the recipe's.
SIDES = (32, 48, 64, 96, 128, 160, 224)
CHOSEN_ON = 1_503  # training images on which epochs were chosen; on other folders, a recipe sees as many images in all
FEWEST_EPOCHS, MOST_EPOCHS = 20, 100
SMALL_BATCH_BELOW = 640  # folders with fewer training images get batches of 16, for more steps
# Turns off the crops and colour changes that some networks apply to the images of their paper.
UNCHANGED = {"crop": None, "brightness": 0.0, "contrast": 0.0}


@register_recipe
def images_efficient() -> Recipe:
    """Efficient-CapsNet on a folder of images: small and fast; the default."""
    return Recipe(
        model=ModelOptions("mazzia2021_efficient_capsnet", {"reconstruction": False, "halve_from": 48}),
        data=replace(FOLDER, size=64),
        augment=AugmentOptions(shift=4, padding_mode="border", flip=True),
        optimizer=OptimizerOptions(learning_rate=4e-3, schedule="cosine", warmup_steps=50, ema=0.98),
        epochs=30,
        batch_size=32,
        channels_last=True,
        balance="auto",
    )


@register_recipe
def images_resnet() -> Recipe:
    """A residual network of ten layers on a folder of images: the CNN that capsules must beat.

    It pools before its first block only from 128 pixels on, so that images of 64 pixels are halved once, as in
    images-efficient.
    """
    return replace(
        images_efficient(),
        model=ModelOptions("he2016_resnet10", {"pool_from": 128}),
        loss=LossOptions(name="cross_entropy"),
        optimizer=OptimizerOptions(learning_rate=2e-3, schedule="cosine", warmup_steps=50, ema=0.98),
    )


def _for_other_laboratories(recipe: Recipe) -> Recipe:
    """Return the recipe with augmentation for domain shift, under which networks still improve after 60 epochs."""
    data = replace(recipe.data, size=64, channels=3, cells="matched")
    return replace(recipe, data=data, augment=recipe.augment.for_domain_shift(), epochs=60)


@register_recipe
def images_cells_efficient() -> Recipe:
    """Efficient-CapsNet on stained cells, also for images of laboratories that it was not trained on.

    Each cell is found, cropped at the scale of its laboratory and matched in stain. Augmentation imitates other
    microscopes.
    """
    return _for_other_laboratories(images_efficient())


@register_recipe
def images_cells_resnet() -> Recipe:
    """The residual network of images-resnet on stained cells, otherwise as images-cells-efficient."""
    return _for_other_laboratories(images_resnet())


@register_recipe
def images_emnet() -> Recipe:
    """EM-NET 1 of Forslöv's thesis on a folder of images, at 224×224; trains on about 25 images/s on two cores."""
    recipe = _over_the_whole_training(emnet_modern("forslov2018_emnet1_init1"))
    return replace(recipe, data=replace(FOLDER, size=224, channels=3), balance="auto")


@register_recipe
def images_capsnet() -> Recipe:
    """CapsNet on a folder of images."""
    return replace(sabour2017_cells(), data=FOLDER, balance="auto")


@register_recipe
def images_cnn() -> Recipe:
    """The CNN baseline of the CapsNet paper on a folder of images."""
    return replace(sabour2017_cells_cnn(), data=FOLDER, balance="auto")


@register_recipe
def images_matrix_capsnet() -> Recipe:
    """Small matrix capsules on a folder of images, with a β_a that can be learned."""
    paper = hinton2018_smallnorb_small()
    return replace(
        paper.with_model(routing=EMRouting(iterations=2, cost_scale=100.0, beta_a_scale=BETA_A_SCALE), **UNCHANGED),
        data=FOLDER,
        augment=AugmentOptions(shift=2, padding_mode="border", flip=True),
        optimizer=OptimizerOptions(learning_rate=3e-3, warmup_steps=100, gradient_clip=10.0),
        epochs=30,
        batch_size=32,
        balance="auto",
    )


@register_recipe
def images_backbone_capsules() -> Recipe:
    """Class capsules on a pretrained backbone, for a folder of images with one subfolder per class.

    The backbone, EfficientNet-Lite0 with ImageNet weights or another (backbone=RUN), is frozen. To train it too, give
    fine_tune=True and a tenth of the learning rate.
    """
    return Recipe(
        model=ModelOptions("backbone_capsules", {"backbone": PRETRAINED}),
        data=replace(FOLDER, size=160, channels=3),
        augment=AugmentOptions(shift=10, padding_mode="border", flip=True),
        optimizer=OptimizerOptions(learning_rate=3e-3),
        epochs=30,
        batch_size=32,
        balance="auto",
    )


@register_recipe
def images_backbone_linear() -> Recipe:
    """Logistic regression on a frozen pretrained backbone, for a folder of images with one subfolder per class.

    Each image passes through it once, and the regularisation is cross-validated on the training images.
    """
    return replace(
        images_backbone_capsules(),
        model=ModelOptions("backbone_linear", {"backbone": PRETRAINED}),
        augment=AugmentOptions(),
        loss=LossOptions(name="cross_entropy"),
        optimizer=OptimizerOptions(method="logistic_regression"),
        epochs=1,
    )


@register_recipe
def images_fine_tuned() -> Recipe:
    """A pretrained backbone with a linear layer, all of it trained at a small learning rate, for few epochs."""
    return replace(
        images_backbone_capsules(),
        model=ModelOptions("backbone_linear", {"backbone": PRETRAINED, "fine_tune": True}),
        epochs=6,
        batch_size=16,
        loss=LossOptions(name="cross_entropy"),
        optimizer=OptimizerOptions(learning_rate=9e-4, schedule="cosine", warmup_steps=50),
        channels_last=True,
    )


def choose_recipe(words: Sequence[str], given: Mapping[str, Any], out: Console) -> tuple[str, Recipe]:
    """Return a recipe's name, and the recipe with the given flags, adapted to a folder of images if there is one.

    Args:
        words: a recipe or its JSON file, images, or the recipe followed by the images.
        given: values of recipe fields by dotted path, e.g. `data.size`.
        out: prints what was chosen for the images.

    Raises:
        ValueError: no such recipe, or a setting out of range. CapsellaError: no such folder or file.
    """
    name, images = _name_and_images(words)
    fields = {path: value for path, value in given.items() if not path.startswith("compute.")}
    if images is not None:
        check_argument("data" not in fields, f"be left out, since {images} has the images", data=fields.get("data"))
        fields["data"] = images
    if name.endswith(".json"):
        return Path(name).stem, with_fields(read_recipe(Path(name)), fields)
    recipe = get_recipe(name)
    if not isinstance(recipe.data, FolderData):
        return name, with_fields(recipe, fields)
    folder = Path(fields.get("data", recipe.data.path))
    if folder == UNNAMED and not folder.exists():
        raise ArgumentError("images", f"be given for this recipe, e.g. capsella train {name} IMAGES", None)
    if "data" in fields and folder.is_dir():
        del fields["data"]
        return name, _fit_to_folder(name, folder, fields, out)
    return name, with_fields(recipe, fields)


def _name_and_images(words: Sequence[str]) -> tuple[str, str | None]:
    """Return the recipe's name or file, and the images, from the words of a command line."""
    check_argument(bool(words) and all(words), "name a recipe or images", words=tuple(words))
    first, *rest = words
    if first.endswith(".json") or first in list_recipes():
        return first, rest[0] if rest else None
    if rest and rest[0] in list_recipes():
        raise ArgumentError("recipe", f"come before the images: {rest[0]} {first}", f"{first} {rest[0]}")
    is_path = Path(first).exists() or Path(first).parent != Path() or first.endswith("/")
    if not is_path:
        get_recipe(first)  # raises, with the nearest name
    if not Path(first).is_dir() and not (first.endswith(".npz") and Path(first).is_file()):
        raise CapsellaError(no_folder(first))
    return DEFAULT, first


def _fit_to_folder(name: str, folder: Path, fields: Mapping[str, Any], out: Console) -> Recipe:
    """Return a recipe adapted to a folder of images and then given `fields`."""
    found, base = inspect_folder(folder), get_recipe(name)
    limits = {path: fields[path] for path in ("data.validation", "data.test", "data.per_class") if path in fields}
    if folds := fields.get("data.folds"):
        limits["data.test"] = 1 / folds
    recipe = fitted(with_fields(base, limits), found)
    recipe = with_fields(replace(recipe, data=replace(recipe.data, test=base.data.test)), fields)
    changed = asdict(recipe.augment).items() - asdict(AugmentOptions()).items()
    settings = f"--size {recipe.data.size} --channels {recipe.data.channels} --batch-size {recipe.batch_size}"
    augmentation = ", ".join(f"{field} {value}" for field, value in sorted(changed)) or "none"
    lines = (f"{folder}: {found}", f"recipe {name} {settings} --epochs {recipe.epochs}; augmentation: {augmentation}")
    out.print(*lines, sep="\n", markup=False, soft_wrap=True)
    return recipe


def fitted(recipe: Recipe, images: FolderSummary) -> Recipe:
    """Return the recipe with size, channels, batch size and epochs chosen for the images of a folder.

    The random shifts stay the same fraction of the image's side.

    Raises:
        ValueError: the recipe is not for a folder.
    """
    if not isinstance(recipe.data, FolderData):
        raise ArgumentError("recipe", "train on a folder", recipe.data.name)
    side, most = min(images.height, images.width), recipe.data.size or max(SIDES)
    size = max((known for known in SIDES if known <= min(side, most)), default=SIDES[0])
    learned_from = images.images * (1 - recipe.data.test) if images.train is None else images.train
    train = max(1, round(learned_from * (1 - (0 if images.validation else recipe.data.validation))))
    if recipe.data.per_class is not None:
        train = min(train, recipe.data.per_class * len(images.classes))
    return replace(
        recipe,
        data=replace(recipe.data, path=images.path, size=size, channels=3 if images.channels == 3 else 1),
        augment=replace(recipe.augment, shift=round(recipe.augment.shift * size / most)),
        batch_size=min(recipe.batch_size, 16) if train < SMALL_BATCH_BELOW else recipe.batch_size,
        epochs=recipe.epochs
        if recipe.optimizer.method == "logistic_regression"
        else usual_epochs(recipe.epochs, train),
    )


def usual_epochs(epochs: int, train: int) -> int:
    """Scale a number of epochs that suits `CHOSEN_ON` training images to `train` of them, within limits.

    >>> usual_epochs(30, 1503), usual_epochs(30, 300), usual_epochs(30, 100_000), usual_epochs(6, 100_000)
    (30, 100, 20, 6)
    """
    return min(MOST_EPOCHS, max(min(FEWEST_EPOCHS, epochs), ceil(epochs * CHOSEN_ON / train)))


def recipe_for(network: str) -> tuple[str, Recipe]:
    """Return the name of the recipe that trains a network on a user's images, and the recipe.

    Crops and brightness changes made for the paper's images are turned off, schedules span the whole training, and all
    networks balance rare classes the same way.

    Raises:
        ValueError: no network has the name.
    """
    has_capsules = "routing" in ModelOptions(network).complete().options
    name = RECIPE_OF.get(network, "images-efficient" if has_capsules else "images-resnet")
    recipe = get_recipe(name)
    if recipe.model.name != network:
        halve_from, recipe = recipe.model.options.get("halve_from"), recipe.with_network(network)
        if "halve_from" in recipe.model.complete().options:
            recipe = recipe.with_model(halve_from=halve_from)
    if has_capsules and network not in RECIPE_OF:
        own = (get_recipe(other) for other in list_recipes())
        loss = next((other.loss for other in own if other.model.name == network), recipe.loss)
        recipe = replace(recipe, loss=loss, optimizer=replace(recipe.optimizer, learning_rate=OTHER_RATE))
    unchanged = {option: value for option, value in UNCHANGED.items() if option in recipe.model.options}
    return name, replace(_over_the_whole_training(recipe.with_model(**unchanged)), balance="auto")


def _over_the_whole_training(recipe: Recipe) -> Recipe:
    """Return the recipe with its spread margin and fast exponential decays spread over all steps.

    A decay to a tenth or less per period is meant for a training of known length; a longer one would end at a learning
    rate of nearly zero.
    """
    optimizer = recipe.optimizer
    if optimizer.schedule == "exponential" and optimizer.decay <= 0.1:
        optimizer = replace(optimizer, decay_steps=None)
    return replace(recipe, loss=replace(recipe.loss, spread_schedule="linear"), optimizer=optimizer)
