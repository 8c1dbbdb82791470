"""The recipe that a command is given: a name, a file, or a folder of images for which one is made to fit."""

import os
from dataclasses import replace
from pathlib import Path

import tyro
from rich.console import Console

from capsella.cli.flags import take
from capsella.data.listing import no_folder
from capsella.data.outline import outline
from capsella.errors import CapsellaError, require
from capsella.papers import get_recipe, list_recipes, recipe_function, recipe_group
from capsella.papers.own_images import DEFAULT, fitted
from capsella.training import Recipe, read_recipe


def chosen_recipe(arguments: list[str], console: Console) -> tuple[str, Recipe, Path | None, list[str]]:
    """The name of the recipe, the recipe for the folder of images if one is given, that folder, and the flags.

    Raises:
        ValueError: no recipe has the name, and no folder. CapsellaError: a recipe's file that cannot be read.
    """
    if arguments[0].endswith(".json"):
        recipe, (file, *words) = read_recipe(Path(arguments[0])), arguments
        images = Path(words.pop(0)) if words and not words[0].startswith("-") else None
        if images is not None:
            require(recipe.data.name == "folder", "be left out: the recipe is not for a folder", images=str(images))
            recipe = replace(recipe, data=replace(recipe.data, path=images))
        return Path(file).stem, recipe, images, words
    name, images, words = _named(arguments)
    if images is not None:
        source, _ = take(words, "--data", "--data.name")
        require(source in (None, "folder", "multi"), f"be left out: the images are those of {images}", data=source)
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
            if first.endswith(("/", os.sep)) or Path(first).parent != Path():
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
    found = outline(images)
    recipe, reasons = fitted(_divided(get_recipe(name), words), found)
    if not set(words) & {"-h", "--help"}:
        console.print(f"{images}: {found}\nrecipe {name}; chosen for these images:", markup=False, soft_wrap=True)
        given = {word.partition("=")[0].rpartition(".")[2].lstrip("-").replace("_", "-") for word in words}
        for flag, reason in reasons.items():
            if flag.split()[0].lstrip("-") not in given:
                console.print(f"  {flag:<16} {reason}", markup=False, soft_wrap=True)
        changes = f"mirrored, and shifted by up to {recipe.augment.shift} pixels"
        if recipe.augment.zoom > 1:
            changes = "turned, mirrored, shifted, and changed as other microscopes, stains and cameras would"
        console.print(f"  training images are {changes} (--no-flip, --shift 0)", markup=False, soft_wrap=True)
    return recipe


def _divided(recipe: Recipe, words: list[str]) -> Recipe:
    """The recipe with the shares of the images that the flags hold back: they tell how many train."""
    data = recipe.data
    validation, test = _share(words, "validation", data.validation), _share(words, "test", data.test)
    return replace(recipe, data=replace(data, validation=validation, test=test))


def _share(words: list[str], part: str, default: float) -> float:
    given, _ = take(words, f"--{part}", f"--data.{part}")
    return default if given is None else tyro.cli(float, args=[given], prog=f"capsella --data.{part}")


def recipe_groups(pattern: str = "*") -> dict[str, list[str]]:
    """Registered names that match a shell pattern, by paper."""
    groups: dict[str, list[str]] = {}
    for name in list_recipes(pattern):
        groups.setdefault(recipe_group(name), []).append(name)
    return dict(sorted(groups.items()))
