"""The recipe that a command line asks for: by name, from a JSON file, or adapted to images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.data import FolderData, FolderListing
from capsella.data.listing import no_folder
from capsella.errors import ArgumentError, CapsellaError, check_argument
from capsella.papers import get_recipe, list_recipes
from capsella.papers.own_images import DEFAULT, UNNAMED, fit_to_folder
from capsella.training import Recipe, read_recipe
from capsella.training.flags import with_fields


def choose_recipe(
    words: Sequence[str], given: Mapping[str, Any], out: Console
) -> tuple[str, Recipe, FolderListing | None]:
    """Return a recipe's name, the recipe with the given flags, and the listing of the folder it was adapted to, if any.

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
        return Path(name).stem, with_fields(read_recipe(Path(name)), fields), None
    recipe = get_recipe(name)
    if not isinstance(recipe.data, FolderData):
        return name, with_fields(recipe, fields), None
    folder = Path(fields.get("data", recipe.data.path))
    if folder == UNNAMED and not folder.exists():
        raise ArgumentError("images", f"be given for this recipe, e.g. capsella train {name} IMAGES", None)
    if "data" in fields and folder.is_dir():
        del fields["data"]
        recipe, lines, listing = fit_to_folder(name, folder, fields)
        out.print(*lines, sep="\n", markup=False, soft_wrap=True)
        return name, recipe, listing
    return name, with_fields(recipe, fields), None


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
