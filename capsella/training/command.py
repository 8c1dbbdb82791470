"""A recipe as a command: the fields by the names of their flags."""

import dataclasses
import inspect
import shlex
from typing import Any

from capsella.errors import unknown_name
from capsella.losses import Classification
from capsella.models import model_function
from capsella.routing import ROUTINGS, Routing
from capsella.training.recipe import RECIPES, Recipe, get_recipe

# Decided by the data, not by the user.
FROM_DATA = ("image_size", "channels", "classes")


def command(name: str, recipe: Recipe) -> str:
    """The command that trains `recipe`: its registered name, and a flag for each field that differs from it.

    For a recipe made in Python, whose `name` is not registered, the call of `train`.
    """
    if name not in RECIPES:
        return f"capsella.training.train(recipe, folder, name={name!r})"
    usual, recipe = get_recipe(name), complete(recipe)
    network, routing = recipe.model["name"], recipe.model.get("routing")
    words = [f"capsella train {name}"]
    # A routing, and a network of other options, bring defaults of their own, against which the other flags are told.
    if network != usual.model["name"]:
        usual = with_network(usual, network)
        words.append(f"--model {network}")
    usual = complete(usual)
    if routing is not None and routing.name != usual.model["routing"].name:
        usual = with_routing(usual, routing.name)
        words.append(f"--routing {routing.name}")
    before = leaves(usual)
    return " ".join(words + [_flag(path, value) for path, value in leaves(recipe).items() if value != before[path]])


def with_network(recipe: Recipe, name: str) -> Recipe:
    """The recipe with another network: a CNN brings cross-entropy, capsules after a CNN margin loss.

    A network whose options have the same names and whose own routing is of the same kind, as the large one of a small
    one, takes them as the recipe has them; any other takes its defaults. For pairs, whose images have two classes, the
    cross-entropy is the sigmoid one.

    Raises:
        ValueError: no network is registered under `name`.
    """
    model = network_options(recipe.model, name)
    had_capsules, has_capsules = "routing" in network_options(recipe.model), "routing" in model
    loss = recipe.loss
    if had_capsules != has_capsules:
        of_cnn: Classification = "sigmoid_cross_entropy" if recipe.data.is_paired else "cross_entropy"
        loss = dataclasses.replace(loss, name="margin" if has_capsules else of_cnn)
    return dataclasses.replace(recipe, model=model, loss=loss)


def with_routing(recipe: Recipe, name: str) -> Recipe:
    """The recipe with another routing at its defaults.

    Raises:
        ValueError: no routing is registered under `name`, or the network has no capsules.
    """
    if "routing" not in recipe.model:
        raise ValueError(f"routing: {recipe.model['name']} has no capsules to route")
    if name not in ROUTINGS:
        raise unknown_name("routing", name, ROUTINGS)
    return dataclasses.replace(recipe, model={**recipe.model, "routing": ROUTINGS[name]()})


def complete(recipe: Recipe) -> Recipe:
    """The recipe with every option of its network, defaults included."""
    return dataclasses.replace(recipe, model=network_options(recipe.model))


def _flag(path: str, value: Any) -> str:
    group, dot, leaf = path.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return f"--{group}{dot}{'' if value else 'no-'}{leaf}"
    return f"--{group}{dot}{leaf} {shlex.quote(str(value))}"


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every field below `value` by the full name of its flag, as in "model.routing.iterations"."""
    if isinstance(value, Routing):
        return {path: value.name, **leaves(dataclasses.asdict(value), path)}
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for key, below in value.items():
        found |= leaves(below, f"{path}.{key}".strip("."))
    return found


def network_options(model: dict[str, Any], network: str | None = None) -> dict[str, Any]:
    """The options in `model` and the defaults of the others; or of another network, see `with_network`."""
    defaults = _default_options(model["name"])
    if network is not None:
        others = _default_options(network)
        if others.keys() != defaults.keys() or type(others.get("routing")) is not type(defaults.get("routing")):
            return {"name": network, **others}
        defaults = others
    given = {key: value for key, value in model.items() if key in defaults}
    return {"name": network or model["name"], **defaults, **given}


def _default_options(network: str) -> dict[str, Any]:
    parameters = inspect.signature(model_function(network)).parameters
    return {key: parameter.default for key, parameter in parameters.items() if key not in FROM_DATA}
