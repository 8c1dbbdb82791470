"""Command-line flags of a recipe: every field, by its full name or by the end of it that is unique."""

import dataclasses
import inspect
import shlex
from typing import Any

from capsella.errors import unknown_name
from capsella.models import model_function
from capsella.routing import ROUTINGS, Routing
from capsella.training import Recipe, get_recipe

# Decided by the data, not by the user.
FROM_DATA = ("image_size", "channels", "classes")


def prepare(recipe: Recipe, words: list[str]) -> tuple[Recipe, list[str]]:
    """The recipe with all options of its network filled in, and the flags with full names.

    `--routing.iterations 1` and `--iterations 1` both become `--model.routing.iterations 1`; `--loss spread` becomes
    `--loss.name spread`. `--model NAME` and `--routing NAME` change which options there are, so they are taken first.
    """
    network, words = _take(words, "--model", "--model.name")
    routing, words = _take(words, "--routing", "--model.routing")
    recipe = dataclasses.replace(recipe, model=_network_options(recipe.model, network))
    if network is not None and "routing" not in recipe.model and recipe.loss.name != "cross_entropy":
        # A CNN trains on its logits; --loss still has the last word.
        recipe = dataclasses.replace(recipe, loss=dataclasses.replace(recipe.loss, name="cross_entropy"))
    if routing is not None:
        recipe = dataclasses.replace(recipe, model={**recipe.model, "routing": _default_routing(recipe, routing)})
    return recipe, _full_names(words, list(_leaves(recipe)))


def _take(words: list[str], *names: str) -> tuple[str | None, list[str]]:
    """The value of a flag, also as --flag=value, and the words without it."""
    rest, value = [], None
    waiting = iter(words)
    for word in waiting:
        name, equals, given = word.partition("=")
        if name not in names:
            rest.append(word)
            continue
        value = given if equals else next(waiting, None)
        if value is None:
            raise ValueError(f"{name}: must be followed by a value")
    return value, rest


def _network_options(model: dict[str, Any], network: str | None) -> dict[str, Any]:
    """The options in `model` and the defaults of the others; those of another network where one is named."""
    name = model["name"] if network is None else network
    defaults = {
        key: parameter.default
        for key, parameter in inspect.signature(model_function(name)).parameters.items()
        if key not in FROM_DATA
    }
    given = {key: value for key, value in model.items() if key in defaults}
    return {"name": name, **defaults, **(given if network is None or network == model["name"] else {})}


def _default_routing(recipe: Recipe, name: str) -> Routing:
    if "routing" not in recipe.model:
        raise ValueError(f"routing: {recipe.model['name']} has no capsules to route")
    if name not in ROUTINGS:
        raise unknown_name("routing", name, ROUTINGS)
    return ROUTINGS[name]()


def command(name: str, recipe: Recipe) -> str:
    """The command that trains `recipe`: its registered name, and a flag for each field that differs from it."""
    usual, _ = prepare(get_recipe(name), [])
    recipe, _ = prepare(recipe, [])
    before, after = _leaves(usual), _leaves(recipe)
    words = [f"capsella train {name}"]
    for path, value in after.items():
        if value != before.get(path):
            words.append(_flag(path, value))
    return " ".join(words)


def _flag(path: str, value: Any) -> str:
    group, dot, leaf = path.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return f"--{group}{dot}{'' if value else 'no-'}{leaf}"
    return f"--{group}{dot}{leaf} {shlex.quote(str(value))}"


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every field below `value` by the full name of its flag, as in "model.routing.iterations"."""
    if isinstance(value, Routing):
        return {path: value.name, **_leaves(dataclasses.asdict(value), path)}
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if not isinstance(value, dict):
        return {path: value}
    leaves: dict[str, Any] = {}
    for key, below in value.items():
        leaves |= _leaves(below, f"{path}.{key}".strip("."))
    return leaves


def _full_names(words: list[str], paths: list[str]) -> list[str]:
    """Short names made long where exactly one flag ends so; anything else is left for the parser to judge."""
    return [_full_name(word, paths) if word.startswith("--") else word for word in words]


def _full_name(word: str, paths: list[str]) -> str:
    flag, equals, value = word[2:].partition("=")
    negated = flag.rpartition(".")[2].startswith("no-")
    plain = flag.replace("no-", "", 1) if negated else flag
    wanted = plain.replace("-", "_")
    if wanted in paths:
        return word
    ends = [path for path in paths if path.endswith(f".{wanted}")] or [
        path for path in paths if path == f"{wanted}.name"
    ]
    if len(ends) > 1:
        raise ValueError(f"--{flag}: must name one field, but could be {' or '.join('--' + path for path in ends)}")
    if not ends:
        return word
    group, _, leaf = ends[0].replace("_", "-").rpartition(".")
    return f"--{group}.{'no-' if negated else ''}{leaf}{equals}{value}"
