"""The recipe that a command is given: a name, a file, or a folder of images for which one is made to fit."""

import os
from dataclasses import replace
from pathlib import Path

import tyro
from rich.console import Console

from capsella.cli.flags import take
from capsella.data import FolderData
from capsella.data.listing import no_folder
from capsella.data.outline import outline
from capsella.errors import CapsellaError, check_argument, pluralize
from capsella.papers import get_recipe, list_recipes, recipe_function, recipe_group
from capsella.papers.own_images import DEFAULT, as_other_microscopes, fitted
from capsella.training import AugmentOptions, Recipe, read_recipe


def chosen_recipe(arguments: list[str], console: Console) -> tuple[str, Recipe, Path | None, list[str]]:
    """The name of the recipe, the recipe for the folder of images if one is given, that folder, and the flags.

    Raises:
        ValueError: no recipe has the name, and no folder. CapsellaError: a recipe's file that cannot be read.
    """
    if arguments[0].endswith(".json"):
        recipe, (file, *words) = read_recipe(Path(arguments[0])), arguments
        images = Path(words.pop(0)) if words and not words[0].startswith("-") else None
        if images is not None:
            check_argument(
                isinstance(recipe.data, FolderData), "be left out: the recipe is not for a folder", images=str(images)
            )
            recipe = replace(recipe, data=recipe.data.replace(path=images))
        return Path(file).stem, recipe, images, words
    name, images, words = _named(arguments)
    if images is not None:
        source, _ = take(words, "--data", "--data.name")
        check_argument(source in (None, "pairs"), f"be left out: the images are those of {images}", data=source)
    return name, get_recipe(name) if images is None else _fit(name, images, words, console), images, words


def _named(arguments: list[str]) -> tuple[str, Path | None, list[str]]:
    """The recipe's name, the folder of images if one is given, and the flags.

    Raises:
        ValueError: the first word is neither; a recipe behind the folder.
        CapsellaError: no such folder, or a file.
    """
    first, *words = arguments
    if "" in arguments[:2]:
        raise ValueError("the folder of images must have a name, got an empty one")
    if first not in list_recipes():
        if first.startswith("-"):
            raise ValueError(f"the first word must be a folder of images or a recipe, got {first!r}; flags come behind")
        if not Path(first).is_dir():
            if first.endswith(("/", os.sep)) or Path(first).parent != Path() or Path(first).exists():
                raise CapsellaError(no_folder(first))
            recipe_function(first)  # raises, with the nearest name
        if words and words[0] in list_recipes():
            raise ValueError(f"a recipe must stand before the folder, as in {words[0]} {first}, got {first} {words[0]}")
        return DEFAULT, Path(first), words
    if words and not words[0].startswith("-"):
        return first, Path(words[0]), words[1:]
    return first, None, words


def _fit(name: str, images: Path, words: list[str], console: Console) -> Recipe:
    """The recipe for this folder; says what was chosen and why, but for what the flags set."""
    found, usual = outline(images), get_recipe(name).data
    recipe, reasons = fitted(_divided(get_recipe(name), words), found)
    kept = replace(recipe.data, validation=usual.validation, test=usual.test, per_class=usual.per_class)
    recipe = replace(recipe, data=kept)  # the flags are yet to be read
    if not set(words) & {"-h", "--help"}:
        console.print(f"{images}: {found}\nrecipe {name}; chosen for these images:", markup=False, soft_wrap=True)
        given = {word.partition("=")[0].rpartition(".")[2].lstrip("-").replace("_", "-") for word in words}
        for flag, reason in reasons.items():
            if flag.split()[0].lstrip("-") not in given:
                console.print(f"  {flag:<16} {reason}", markup=False, soft_wrap=True)
    return recipe


def changes_line(augment: AugmentOptions) -> str:
    """How training images are changed, all flags counted, for the user of a folder."""
    others = replace(
        AugmentOptions(), shift=augment.shift, padding_mode=augment.padding_mode, rotation=augment.rotation
    )
    others = replace(others, rotation_sd=augment.rotation_sd, flip=augment.flip, mirror=augment.mirror)
    as_elsewhere = augment == as_other_microscopes(augment)
    changes = {
        "turned": augment.rotation or augment.rotation_sd,
        "mirrored": augment.flip or augment.mirror,
        f"shifted by up to {pluralize(augment.shift, 'pixel')}": augment.shift,
        "changed as other microscopes, stains and cameras would": as_elsewhere,
        "changed in other ways, as --help lists them": augment != others and not as_elsewhere,
    }
    said = [change for change, is_made in changes.items() if is_made]
    what = ", ".join(said) if said else "not changed"
    return f"  training images are {what} (flags as --no-flip and --shift 0 set that)"


def _divided(recipe: Recipe, words: list[str]) -> Recipe:
    """The recipe with what the flags hold back of the images: it tells how many train."""
    data = recipe.data
    validation, test = _number(words, "validation", data.validation), _number(words, "test", data.test)
    if folds := _number(words, "folds", 0):
        test = 1 / max(2, folds)
    per_class = int(_number(words, "per-class", data.per_class or 0)) or None
    return replace(recipe, data=replace(data, validation=validation, test=test, per_class=per_class))


def _number(words: list[str], part: str, default: float) -> float:
    given, _ = take(words, f"--{part}", f"--data.{part}")
    return default if given in (None, "None") else tyro.cli(float, args=[given], prog=f"capsella --data.{part}")


def recipe_groups(pattern: str = "*") -> dict[str, list[str]]:
    """Registered names that match a shell pattern, by paper."""
    groups: dict[str, list[str]] = {}
    for name in list_recipes(pattern):
        groups.setdefault(recipe_group(name), []).append(name)
    return dict(sorted(groups.items()))
