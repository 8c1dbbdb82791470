"""The registry of recipes, and the command that trains a recipe."""

import fnmatch
import inspect
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from capsella.errors import unknown_name
from capsella.training.flags import recipe_fields, with_fields
from capsella.training.recipe import Recipe, flatten

RecipeFunction = Callable[[], Recipe]
RECIPES: dict[str, RecipeFunction] = {}


def register_recipe(function: RecipeFunction) -> RecipeFunction:
    """Register a function that returns a recipe, under the function's name with hyphens; use it as a decorator."""
    RECIPES[_hyphens(function.__name__)] = function
    return function


def register_recipe_for(
    networks: Sequence[str], suffix: str = ""
) -> Callable[[Callable[[str], Recipe]], Callable[[str], Recipe]]:
    """Return a decorator that registers a function of a network's name once per network, as NETWORK + `suffix`."""

    def register(function: Callable[[str], Recipe]) -> Callable[[str], Recipe]:
        RECIPES.update({_hyphens(network) + suffix: partial(function, network) for network in networks})
        return function

    return register


def get_recipe(name: str) -> Recipe:
    """Return the recipe registered under `name`.

    Raises:
        ArgumentError: unknown; suggests the nearest.
    """
    if name not in RECIPES:
        where = "`capsella list recipes` lists them; to train on your own images, name an existing folder"
        raise unknown_name("recipe", name, RECIPES, where)
    return RECIPES[name]()


def recipe_text(name: str) -> str:
    """Return the recipe's docstring."""
    return inspect.getdoc(_source(name)) or ""


def recipe_summary(name: str) -> str:
    """Return the first paragraph of the recipe's docstring, in one line."""
    return recipe_text(name).partition("\n\n")[0].replace("\n", " ")


def recipe_group(name: str) -> str:
    """Return the package or module below `capsella.papers` that defines the recipe, e.g. "sabour2017"."""
    return _source(name).__module__.removeprefix("capsella.papers.").partition(".")[0]


def recipe_modules() -> tuple[str, ...]:
    """Return the modules that register recipes when imported, without a running script (`__main__`)."""
    return tuple(sorted({_source(name).__module__ for name in RECIPES} - {"__main__"}))


def _source(name: str) -> Callable[..., Recipe]:
    """Return the function that was registered, without a bound network."""
    function = RECIPES[name]
    return function.func if isinstance(function, partial) else function


def list_recipes(pattern: str = "*") -> list[str]:
    """Return registered names that match a shell pattern, in the order of registration."""
    return fnmatch.filter(RECIPES, pattern)


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


def train_command(name: str, recipe: Recipe) -> str:
    """Return the command that trains `recipe`: its registered name, and a flag for each field that differs from it.

    For an unregistered recipe, made in Python or read from a file, the command reads the run's config.json.
    """
    if name not in RECIPES:
        return "capsella train config.json"
    registered, words = get_recipe(name), ["capsella", "train", name]
    changed: dict[str, Any] = {}
    if recipe.data.text != registered.data.text:
        changed["data"] = recipe.data.text
    if recipe.model.name != registered.model.name:
        changed["model"] = recipe.model.name
    for path, value in changed.items():
        words += [f"--{path}", value]
    # Another source, network or routing brings its own defaults, from which the other flags differ.
    before, after = flatten(with_fields(registered, changed).complete()), flatten(recipe.complete())
    routing = after.get("model.routing")
    if routing != before.get("model.routing"):
        before = flatten(with_fields(registered, {**changed, "model_kwargs": (f"routing={routing}",)}).complete())
        before["model.routing"] = None
    differing = {path: value for path, value in after.items() if before.get(path, ...) != value}
    if options := [f"{path.removeprefix('model.')}={value}" for path, value in differing.items() if "model." in path]:
        words += ["--model-kwargs", *options]
    for path, value in differing.items():
        if field := recipe_fields().get(path):
            words += _words(field.flag, value)
    return shlex.join(words)


def _words(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]
