"""The recipe of a command: a name, a JSON file, or images for which a recipe is chosen and fitted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from capsella.errors import ArgumentError, CapsellaError, check_argument, pluralize

if TYPE_CHECKING:
    from capsella.training import AugmentOptions, Recipe


def choose_recipe(words: Sequence[str], given: Mapping[str, Any], out: Console) -> "tuple[str, Recipe, int | None]":
    """Return the name of the recipe, the recipe with the flags, and the usual epochs if it was fitted to images.

    Args:
        words: a recipe or its JSON file, and images; both can be left out.
        given: settings by path, as `capsella.cli.flags.settings` reads them.
        out: for what was chosen for the images.

    Raises:
        ValueError: no such recipe, or settings out of range. CapsellaError: no such folder or file.
    """
    from capsella.data import FolderData
    from capsella.papers import get_recipe
    from capsella.papers.own_images import UNNAMED
    from capsella.training import read_recipe
    from capsella.training.flags import with_fields

    name, images = _name_and_images(words)
    if images is not None:
        check_argument("data" not in given, f"be left out: the images are those of {images}", data=given.get("data"))
        given = {**given, "data": images}
    if name.endswith(".json"):
        recipe = with_fields(read_recipe(Path(name)), _recipe_fields_of(given))
        return Path(name).stem, recipe, None
    recipe, epochs = get_recipe(name), None
    fields = _recipe_fields_of(given)
    source = given.get("data")
    if source is not None and Path(source).is_dir() and isinstance(recipe.data, FolderData):
        recipe = _fitted(name, Path(source), given, out)
        epochs, fields = recipe.epochs, {path: value for path, value in fields.items() if path != "data"}
    recipe = with_fields(recipe, fields)
    if isinstance(recipe.data, FolderData) and recipe.data.path == UNNAMED and not UNNAMED.exists():
        raise ArgumentError("images", f"be given for this recipe, e.g. capsella train {name} IMAGES", None)
    return name, recipe, epochs


def _recipe_fields_of(given: Mapping[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in given.items() if not path.startswith("compute.")}


def _name_and_images(words: Sequence[str]) -> tuple[str, str | None]:
    """Tell the recipe from the images."""
    from capsella.data.listing import no_folder
    from capsella.papers import get_recipe, list_recipes
    from capsella.papers.own_images import DEFAULT

    check_argument(bool(words) and all(words), "name a recipe or images", words=tuple(words))
    first, *rest = words
    if first.endswith(".json") or first in list_recipes():
        return first, rest[0] if rest else None
    if rest and rest[0] in list_recipes():
        raise ArgumentError("recipe", f"come before the images, i.e. {rest[0]} {first}", f"{first} {rest[0]}")
    if not Path(first).exists():
        if Path(first).parent != Path() or first.endswith("/"):
            raise CapsellaError(no_folder(first))
        get_recipe(first)  # raises, with the nearest name
    if Path(first).is_file() and not first.endswith(".npz"):
        raise CapsellaError(no_folder(first))
    return DEFAULT, first


def _fitted(name: str, images: Path, given: Mapping[str, Any], out: Console) -> "Recipe":
    """Fit a recipe to a folder, and print what was chosen and why, except for what flags set."""
    from capsella.data.scan import inspect_folder
    from capsella.papers import get_recipe
    from capsella.papers.own_images import fitted
    from capsella.training.flags import with_fields

    found, base = inspect_folder(images), get_recipe(name)
    limits = {path: given[path] for path in ("data.validation", "data.test", "data.per_class") if path in given}
    if folds := given.get("data.folds"):
        limits["data.test"] = 1 / folds
    recipe, reasons = fitted(with_fields(base, limits), found)
    out.print(f"{images}: {found}\nrecipe {name}; chosen for these images:", markup=False, soft_wrap=True)
    set_by_flags = {path.rpartition(".")[2].replace("_", "-") for path in given}
    for flag, reason in reasons.items():
        if flag.split()[0].lstrip("-") not in set_by_flags:
            out.print(f"  {flag:<16} {reason}", markup=False, soft_wrap=True)
    kept = {field: getattr(base.data, field) for field in ("validation", "test", "per_class")}
    return replace(recipe, data=replace(recipe.data, **kept))


def describe_augmentation(augment: "AugmentOptions") -> str:
    """Return a line on how training images are changed."""
    from capsella.training import AugmentOptions

    plain = ("shift", "padding_mode", "rotation", "rotation_sd", "flip", "mirror")
    others = replace(AugmentOptions(), **{name: getattr(augment, name) for name in plain})
    for_domains = augment == augment.for_domain_shift()
    changes = {
        "rotated": augment.rotation or augment.rotation_sd,
        "mirrored": augment.flip or augment.mirror,
        f"shifted by up to {pluralize(augment.shift, 'pixel')}": augment.shift,
        "changed like images of other microscopes, stains and cameras": for_domains,
        "changed in other ways (--help-all)": augment != others and not for_domains,
    }
    done = ", ".join(change for change, is_made in changes.items() if is_made)
    return f"  training images are {done or 'not changed'} (flags such as --no-flip and --shift 0 set that)"
