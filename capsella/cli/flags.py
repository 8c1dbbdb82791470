"""Command lines to options. tyro parses; what a command does is imported after that, since PyTorch takes seconds."""

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

import tyro

from capsella.training.config import ComputeOptions
from capsella.training.flags import field_texts, recipe_fields

T = TypeVar("T")

# Marks a field whose value is a dataclass: its fields are flags without a prefix.
Group = tyro.conf.arg(name="")


def positional(metavar: str, help_text: str) -> tuple[Any, Any]:
    """Return the annotations of an argument without a flag."""
    return tyro.conf.Positional, tyro.conf.arg(metavar=metavar, help=help_text)


def parse(command: type[T], arguments: Sequence[str], name: str) -> T:
    """Parse the command line of `capsella NAME`.

    Flags of the command's base class are in --help, all flags in --help-all.

    Raises:
        SystemExit: after help, or after an error, which tyro explains.
    """
    prog, words, common = f"capsella {name}", list(arguments), command.__mro__[1]
    if not dataclasses.is_dataclass(common):
        return tyro.cli(command, args=words, prog=prog, description=inspect.getdoc(command))
    description = inspect.getdoc(common)
    if {"-h", "--help"} & set(words):
        description = f"{description}\n\nAll flags: {prog} --help-all"
        tyro.cli(common, args=["--help"], prog=prog, description=description)
    words = ["--help" if word == "--help-all" else word for word in words]
    return tyro.cli(command, args=words, prog=prog, description=description)


def settings(*paths: str) -> Any:
    """Return a type for tyro with an optional flag for each of these fields of a recipe; without paths, for all.

    Its value is a dictionary of the flags that were given, for `with_fields`. Fields of `ComputeOptions` have paths
    like "compute.threads".
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
    """Return the settings of a group, by the names of its fields."""
    return {path.removeprefix(f"{group}."): value for path, value in given.items() if path.startswith(f"{group}.")}
