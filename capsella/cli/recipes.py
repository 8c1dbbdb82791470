"""`capsella recipes`."""

import fnmatch
from dataclasses import dataclass
from typing import Annotated

import tyro

from capsella.cli.screen import list_entries
from capsella.papers import RECIPES, get_recipe
from capsella.training.command import complete, leaves


@dataclass(frozen=True)
class Recipes:
    """List the recipes by paper; a full name shows one, with all its fields."""

    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]")] = "*"
    """A shell pattern, as in 'hinton*', or a full name."""


def run(arguments: list[str]) -> None:
    """List, or show one."""
    pattern = tyro.cli(Recipes, args=arguments, prog="capsella recipes").pattern
    groups = recipe_groups(pattern)
    if not groups:
        get_recipe(pattern)  # raises, with the nearest name
    if pattern in RECIPES:
        _show(pattern)
    else:
        list_entries({group: [(name, _summary(name)) for name in names] for group, names in groups.items()})


def recipe_groups(pattern: str = "*") -> dict[str, list[str]]:
    """Registered names that match a shell pattern, by paper."""
    groups: dict[str, list[str]] = {}
    for name in fnmatch.filter(RECIPES, pattern):
        groups.setdefault(_group(name), []).append(name)
    return groups


def _show(name: str) -> None:
    print(f"{name}: {_summary(name)}\n\nfields, each a flag of `capsella train {name}`:")
    for path, value in leaves(complete(get_recipe(name))).items():
        print(f"  {path} = {value}")


def _group(name: str) -> str:
    paper = name.partition("-")[0]
    return paper if paper[-4:].isdigit() else "ours"


def _summary(name: str) -> str:
    recipe = get_recipe(name)
    return f"{recipe.model['name']} on {recipe.data.name}, {recipe.epochs} epochs in batches of {recipe.batch_size}"
