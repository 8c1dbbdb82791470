"""A recipe as a command: the fields by the names of their flags."""

import dataclasses
import shlex
from typing import Any

from capsella.routing import Routing
from capsella.training.options import ModelOptions
from capsella.training.recipe import Recipe
from capsella.training.registry import RECIPES, get_recipe


def command(name: str, recipe: Recipe) -> str:
    """The command that trains `recipe`: its registered name, and a flag for each field that differs from it.

    A recipe that was made in Python, or read from a file, is in the run's config.json, which is such a file.
    """
    if name not in RECIPES:
        return "capsella train config.json"
    usual, recipe = get_recipe(name), recipe.complete()
    words = [f"capsella train {name}"]
    # A routing, and a network of other options, bring defaults of their own, against which the other flags are told.
    if recipe.data.kind != usual.data.kind:
        usual = dataclasses.replace(usual, data=usual.data.on(recipe.data.text))
        words.append(f"--data {shlex.quote(recipe.data.text)}")
    if recipe.model.name != usual.model.name:
        usual = usual.with_network(recipe.model.name)
        words.append(f"--model {recipe.model.name}")
    usual = usual.complete()
    routing = recipe.model.options.get("routing")
    if routing is not None and routing.name != usual.model.options["routing"].name:
        usual = dataclasses.replace(usual, model=usual.model.with_routing(routing.name))
        words.append(f"--routing {routing.name}")
    before = leaves(usual)
    return " ".join(words + [_flag(path, value) for path, value in leaves(recipe).items() if value != before[path]])


def _flag(path: str, value: Any) -> str:
    group, dot, leaf = path.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return f"--{group}{dot}{'' if value else 'no-'}{leaf}"
    words = value if isinstance(value, tuple) else (value,)
    return f"--{group}{dot}{leaf} {shlex.join(map(str, words))}"


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every field below `value` by the full name of its flag, as in "model.routing.iterations"."""
    if isinstance(value, Routing):
        return {path: value.name, **leaves(dataclasses.asdict(value), path)}
    if isinstance(value, ModelOptions):
        value = {"name": value.name, **value.options}
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for key, below in value.items():
        found |= leaves(below, f"{path}.{key}".strip("."))
    return found
