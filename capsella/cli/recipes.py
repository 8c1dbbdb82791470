"""`capsella recipes`."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from capsella.cli.chosen import recipe_groups
from capsella.cli.screen import list_entries
from capsella.papers import get_recipe, list_recipes, recipe_function, recipe_summary, recipe_text
from capsella.training.recipes import flatten


@dataclass(frozen=True)
class Recipes:
    """List the recipes by paper; a full name shows one, with all its fields."""

    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]")] = "*"
    """A shell pattern, as in 'hinton*', or a full name."""


def run(arguments: list[str]) -> None:
    """List, or show one."""
    pattern = tyro.cli(Recipes, args=arguments, prog="capsella recipes").pattern
    names = list_recipes(pattern)
    if not names:
        recipe_function(pattern)  # raises, with the nearest name
    if names == [pattern]:
        _show(pattern)
    else:
        groups = recipe_groups(pattern)
        list_entries({group: [(name, recipe_summary(name)) for name in names] for group, names in groups.items()})


def _show(name: str) -> None:
    print(f"{name}: {recipe_text(name)}\n\nfields, each a flag of `capsella train {name}`:")
    for path, value in flatten(get_recipe(name).complete()).items():
        print(f"  {path} = {value}")
