"""The registry of recipes; the fields of a recipe as command-line flags; and the command that trains a recipe.

PyTorch is imported only if the network changes.
"""

import ast
import dataclasses
import fnmatch
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, get_type_hints

import docstring_parser

from capsella.data.options import KINDS, FolderData
from capsella.errors import check_argument, unknown_name
from capsella.losses import LossOptions
from capsella.training.config import AugmentOptions, OptimizerOptions
from capsella.training.recipe import Recipe, flatten

RecipeFunction = Callable[[], Recipe]
RECIPES: dict[str, RecipeFunction] = {}
# The dataclasses of each part of a recipe. The class of `data` depends on the source.
GROUPS: dict[str, tuple[type, ...]] = {
    "": (Recipe,),
    "data": tuple(KINDS.values()),
    "augment": (AugmentOptions,),
    "loss": (LossOptions,),
    "optimizer": (OptimizerOptions,),
}
FLAGS = {"loss.name": "loss", "optimizer.method": "optimizer"}  # other flags: the last part of the field's path
SOURCE_FIELDS = ("path", "name", "domains")  # the source itself, which --data names


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


class RecipeField(NamedTuple):
    """A field of a recipe that a flag sets, e.g. `--learning-rate` for the path optimizer.learning_rate."""

    path: str
    flag: str
    type: Any
    text: str


@cache
def recipe_fields() -> dict[str, RecipeField]:
    """Return each recipe field with a flag, by dotted path; `model`, `model_kwargs`, `data` set network and source."""
    found = [
        RecipeField("model", "model", str, "The network (capsella list models); the recipe's by default."),
        RecipeField(
            "model_kwargs",
            "model-kwargs",
            tuple[str, ...],
            "Options of the network as NAME=VALUE, e.g. reconstruction=False routing=em routing.iterations=2 "
            "(capsella list models NAME shows them).",
        ),
        RecipeField("data", "data", str, "Images: a folder, an .npz file or a named source (capsella list data)."),
    ]
    for group, kinds in GROUPS.items():
        for kind in kinds:
            hints, texts = get_type_hints(kind, include_extras=True), field_texts(kind)
            for item in dataclasses.fields(kind):
                path = f"{group}.{item.name}" if group else item.name
                is_source = group == "data" and item.name in SOURCE_FIELDS
                if path in GROUPS or path == "model" or is_source:
                    continue
                flag = FLAGS.get(path, item.name).replace("_", "-")
                found.append(RecipeField(path, flag, hints[item.name], texts.get(item.name, "")))
    fields: dict[str, RecipeField] = {}
    for field in found:
        fields.setdefault(field.path, field)
    return fields


def field_texts(kind: type) -> dict[str, str]:
    """Return each field's docstring in one line, from a dataclass and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            params = docstring_parser.parse_from_object(base).params
            texts |= {param.arg_name: " ".join((param.description or "").split()) for param in params}
    return texts


def with_fields(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return a recipe with some fields replaced; `values` has them by dotted path.

    Paths are the keys of `recipe_fields`, or options of the network and its routing, e.g. "model.routing.iterations".

    Raises:
        ValueError: a value out of range, or a field that this source of images or network does not have.
    """
    values = dict(values)
    if (network := values.pop("model", None)) is not None:
        recipe = recipe.with_network(network)
    for word in values.pop("model_kwargs", ()):
        name, equals, text = word.partition("=")
        check_argument(bool(equals), "be NAME=VALUE", model_kwargs=word)
        values[f"model.{name}"] = _literal(text)
    source = values.pop("data", None)
    parts: dict[str, Any] = {} if source is None else {"data": recipe.data.on(source)}
    changes: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        group, dot, name = path.partition(".")
        changes.setdefault(group if dot else "", {})[name or group] = value
    if options := changes.pop("model", None):
        parts["model"] = recipe.model.with_options(options)
    parts |= changes.pop("", {})
    parts |= {group: with_values(parts.get(group, getattr(recipe, group)), of) for group, of in changes.items()}
    return dataclasses.replace(recipe, **parts)


def with_values(part: Any, changes: Mapping[str, Any]) -> Any:
    """Return a part of a recipe, e.g. its optimizer options, with some fields replaced.

    Raises:
        ValueError: a value out of range, or a field that this kind of data does not have.
    """
    known = {field.name for field in dataclasses.fields(part)}
    for name, value in changes.items():
        check_argument(
            name in known, f"be left out for {getattr(part, 'text', 'this')}, which lacks it", **{name: value}
        )
    return dataclasses.replace(part, **changes)


def _literal(text: str) -> Any:
    """Return the Python literal that `text` spells, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


FITTED = ("data.size", "data.channels", "augment.shift", "epochs", "batch_size")  # `capsella train` fits to a folder


def train_command(name: str, recipe: Recipe) -> str:
    """Return the command that trains `recipe`: its registered name, and a flag for each field that differs from it.

    Fields that training on a folder fits to its images are always given.

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
    fitted = FITTED if isinstance(registered.data, FolderData) and isinstance(recipe.data, FolderData) else ()
    differing = {path: value for path, value in after.items() if before.get(path, ...) != value or path in fitted}
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
