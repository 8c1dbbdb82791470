"""What `--help` says of each flag: its text in one piece, and its default where there is one."""

from dataclasses import replace
from typing import Annotated, Any, get_args, get_origin

import docstring_parser
import tyro
from docstring_parser import Docstring, DocstringStyle
from tyro.constructors import (
    MISSING,
    MISSING_NONPROP,
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)


def join_lines() -> None:
    """Let tyro, which reads the texts below fields with `docstring_parser`, see them without their line breaks.

    They come with the indentation of the source, and tyro takes an indented line for one that must stay on its own.
    """
    read = docstring_parser.parse_from_object
    if read.__module__ == __name__:
        return

    def parse_from_object(obj: Any, style: DocstringStyle = DocstringStyle.AUTO) -> Docstring:
        parsed = read(obj, style)
        for field in parsed.params:
            if field.description is not None:
                field.description = " ".join(field.description.split())
        return parsed

    docstring_parser.parse_from_object = parse_from_object


def plain_defaults() -> ConstructorRegistry:
    """Rules for tyro, with which no flag says "(default: )" or "(default: None)"; a text says what happens without it.

    An argument that must be given at least once says "(required)".
    """
    registry = ConstructorRegistry()
    asking = False

    @registry.struct_rule
    def rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        nonlocal asking
        if asking:  # tyro's own rules, which come after this one
            return None
        asking = True
        try:
            found = ConstructorRegistry.get_struct_spec(info)
        finally:
            asking = False
        if not isinstance(found, StructConstructorSpec):
            return None
        return replace(found, fields=tuple(map(_hinted, found.fields)))

    return registry


def _hinted(field: StructFieldSpec) -> StructFieldSpec:
    """The field, whose own annotations go before ours."""
    kind, *own = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
    if (field.default is MISSING or field.default is MISSING_NONPROP) and get_origin(kind) is tuple:
        hint = tyro.conf.arg(help_behavior_hint="(required)")
    elif field.default is None or field.default == ():
        hint = tyro.conf.arg(help_behavior_hint="")
    else:
        return field
    annotated: Any = Annotated[(kind, hint, *own)]
    return replace(field, type=annotated)
