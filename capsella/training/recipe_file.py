"""A recipe as a JSON file: what a search found, or what was written by hand, for `capsella train FILE.json`."""

import json
from pathlib import Path

from capsella.errors import CapsellaError, errors_of
from capsella.files import write_json
from capsella.training.recipe import Recipe


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write a complete recipe; `read_recipe` brings it back. A relative path of images is from where one trains."""
    write_json(path, {"recipe": recipe.complete().to_dict()})


def read_recipe(path: Path) -> Recipe:
    """The recipe in a JSON file, which may be a run's config.json, too.

    Raises:
        CapsellaError: no such file, no JSON, or no recipe of this version.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CapsellaError(f"{path}: must be a recipe's JSON file: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("recipe"), dict):
        raise CapsellaError(f'{path}: must hold {{"recipe": {{…}}}}, as `capsella search --save-recipe` writes it')
    with errors_of(path):
        try:
            recipe = Recipe.from_dict(values["recipe"])
            recipe.model.check()
            return recipe
        except (AttributeError, TypeError) as error:
            raise CapsellaError(f"not a recipe of this version of capsella: {error}") from error
