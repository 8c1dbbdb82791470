"""Parses command lines into options with tyro. Commands import PyTorch only after that, since it takes seconds."""

import dataclasses
import inspect
from collections.abc import Collection, Sequence
from functools import cache, partial
from typing import Annotated, Any, TypedDict, TypeVar, get_args, get_origin, get_type_hints

import tyro

from capsella.errors import check_argument
from capsella.training.config import ComputeOptions
from capsella.training.registry import field_texts, recipe_fields

T = TypeVar("T")

# Marks a field whose value is a dataclass: its fields are flags without a prefix.
Group = tyro.conf.arg(name="")


def positional(metavar: str, help_text: str) -> tuple[Any, Any]:
    """Return the annotations of a positional argument."""
    return tyro.conf.Positional, tyro.conf.arg(metavar=metavar, help=help_text, help_behavior_hint="")


def parse(command: type[T], arguments: Sequence[str], name: str) -> T:
    """Parse the command line of `capsella NAME`.

    Flags of the command's base class are in --help, all flags in --help-all.

    Raises:
        SystemExit: after help, or after an error, which tyro explains.
    """
    prog, words, common = f"capsella {name}", list(arguments), command.__mro__[1]
    _explain_fields(command)  # type: ignore[arg-type]  # a class can be hashed
    if not dataclasses.is_dataclass(common):
        return tyro.cli(command, args=words, prog=prog, description=inspect.getdoc(command))
    description = inspect.getdoc(common)
    if {"-h", "--help"} & set(words):
        description = f"{description}\n\nAll flags: {prog} --help-all"
        tyro.cli(common, args=["--help"], prog=prog, description=description)
    words = ["--help" if word == "--help-all" else word for word in words]
    return tyro.cli(command, args=words, prog=prog, description=description)


def check_default(options: Any, names: Collection[str], rule: str) -> None:
    """Check that these fields have their defaults, because others were given with which they do not go together.

    Raises:
        ArgumentError: one of them was given; `rule` completes "must …".
    """
    for field in dataclasses.fields(options):
        if field.name in names:
            value = getattr(options, field.name)
            check_argument(value == field.default, rule, **{field.name: value})


@cache
def _explain_fields(kind: Any) -> None:
    """Annotate the fields of a command for tyro: one-line texts, no --no-FLAG for flags that are off, few defaults.

    By itself, tyro keeps the line breaks of the docstrings, and prints "(default: None)" after texts that explain more.
    """
    for base in kind.__mro__[:-1]:
        texts, hints = field_texts(base), get_type_hints(base, include_extras=True)
        for name in inspect.get_annotations(base):
            inner = get_args(hints[name])[0] if get_origin(hints[name]) is Annotated else hints[name]
            if isinstance(inner, type) and dataclasses.is_dataclass(inner):
                _explain_fields(inner)
            elif text := texts.get(name):
                explained = tyro.conf.arg(help=text, help_behavior_hint=partial(_shown_default, text))
                off = [tyro.conf.FlagCreatePairsOff] if getattr(base, name, None) is False else []
                annotations = hints[name], tyro.conf.DisallowNone, *off, explained
                base.__annotations__[name] = Annotated[annotations]


def _shown_default(text: str, default: str) -> str:
    return "" if default in ("None", "", "True", "False") or "Default:" in text else f"(default: {default})"


def settings(*paths: str) -> Any:
    """Return a type for tyro with an optional flag for each of these recipe fields; without paths, for all fields.

    tyro parses it into a dictionary of the given flags, for `with_fields`. Fields of `ComputeOptions` have paths like
    "compute.threads".
    """
    texts = {field.path: (field.flag, field.type, field.text) for field in recipe_fields().values()}
    hints, compute = get_type_hints(ComputeOptions), field_texts(ComputeOptions)
    for name, text in compute.items():
        texts[f"compute.{name}"] = (name.replace("_", "-"), hints[name], text)
    flags = {
        path: Annotated[kind, tyro.conf.arg(name=flag, help=text, help_behavior_hint="")]
        for path, (flag, kind, text) in texts.items()
        if not paths or path in paths
    }
    return Annotated[TypedDict("Settings", flags, total=False), Group]  # type: ignore[operator]


def part_of(given: dict[str, Any], group: str) -> dict[str, Any]:
    """Return the given settings of a group, e.g. "data", by field name."""
    return {path.removeprefix(f"{group}."): value for path, value in given.items() if path.startswith(f"{group}.")}
