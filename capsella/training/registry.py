"""The registered recipes: functions without arguments, by the names under which `capsella train` knows them."""

import fnmatch
import inspect
from collections.abc import Callable, Sequence
from functools import partial

from capsella.errors import unknown_name
from capsella.training.recipe import Recipe

RecipeFunction = Callable[[], Recipe]
RECIPES: dict[str, RecipeFunction] = {}


def register_recipe(function: RecipeFunction) -> RecipeFunction:
    """Decorator for a function that returns a recipe; its name is the function's, with hyphens."""
    RECIPES[_hyphens(function.__name__)] = function
    return function


def register_recipe_for(
    networks: Sequence[str], suffix: str = ""
) -> Callable[[Callable[[str], Recipe]], Callable[[str], Recipe]]:
    """Decorator for a function from a network's name to its recipe: one recipe a network, named NETWORK + `suffix`."""

    def register(function: Callable[[str], Recipe]) -> Callable[[str], Recipe]:
        RECIPES.update({_hyphens(network) + suffix: partial(function, network) for network in networks})
        return function

    return register


def get_recipe(name: str) -> Recipe:
    """The recipe registered under `name`.

    Raises:
        ValueError: unknown; suggests the nearest.
    """
    return recipe_function(name)()


def recipe_function(name: str) -> RecipeFunction:
    """The function registered under `name`.

    Raises:
        ValueError: unknown; suggests the nearest.
    """
    if name not in RECIPES:
        where = "`capsella recipes` lists them; images of your own are named by their folder, which must be there"
        raise unknown_name("recipe", name, RECIPES, where)
    return RECIPES[name]


def recipe_text(name: str) -> str:
    """What the recipe's docstring says."""
    return inspect.getdoc(_written(name)) or ""


def recipe_summary(name: str) -> str:
    """Its first paragraph, in a line."""
    return recipe_text(name).partition("\n\n")[0].replace("\n", " ")


def recipe_group(name: str) -> str:
    """The package or module below `capsella.papers` that has the recipe, as "sabour2017" or "own_images"."""
    return _written(name).__module__.removeprefix("capsella.papers.").partition(".")[0]


def recipe_modules() -> tuple[str, ...]:
    """The modules whose import registers the recipes; those of a script that runs are registered by nobody else."""
    return tuple(sorted({_written(name).__module__ for name in RECIPES} - {"__main__"}))


def _written(name: str) -> Callable[..., Recipe]:
    """The function as it stands in the code, without the network that it was registered for."""
    function = recipe_function(name)
    return function.func if isinstance(function, partial) else function


def list_recipes(pattern: str = "*") -> list[str]:
    """Registered names that match a shell pattern, in the order in which each paper's file has them."""
    return fnmatch.filter(RECIPES, pattern)


def _hyphens(name: str) -> str:
    return name.replace("_", "-")
