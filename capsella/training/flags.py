"""Command-line flags of a recipe: its fields with types and help texts, and recipes with some fields replaced.

PyTorch is imported only if the network changes.
"""

import ast
import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import docstring_parser

from capsella.data.options import KINDS
from capsella.errors import check_argument
from capsella.losses import LossOptions
from capsella.training.config import AugmentOptions, OptimizerOptions
from capsella.training.recipe import Recipe

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
