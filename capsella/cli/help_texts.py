"""What `--help` says of each flag: its text in one piece, and its default where there is one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, TypedDict, get_args, get_origin, get_type_hints

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
        fields = (_of_network(field, info.default) if _is_of_network(field) else field for field in found.fields)
        return replace(found, fields=tuple(map(_hinted, fields)))

    return registry


def _is_of_network(field: StructFieldSpec) -> bool:
    """Whether it is the options of a `ModelOptions`, the one mapping among all flags."""
    return field.name == "options" and isinstance(field.default, Mapping)


def _of_network(field: StructFieldSpec, model: Any) -> StructFieldSpec:
    """The options of a `ModelOptions`, which take what the network's function says of them: types and texts."""
    from capsella.cli.network_texts import option_texts  # with PyTorch, which is loaded after `main` has set it up
    from capsella.models import model_function

    hints = get_type_hints(model_function(model.name))
    types = {name: _of_flag(hints.get(name, type(value)), value) for name, value in model.options.items()}
    kinds: Any = TypedDict("Options", types)  # type: ignore[misc]
    texts = option_texts(model.name)
    lines = (f"    {name}: {texts[name][:1].upper()}{texts[name][1:]}" for name in model.options)
    kinds.__doc__ = "\n".join(["Options.\n\nArgs:", *lines])
    _, *own = get_args(field.type)
    annotated: Any = Annotated[(kinds, *own)]
    return replace(field, type=annotated)


def _of_flag(annotation: Any, value: Any) -> Any:
    """As annotated; but a stem is a name there, not the description of it that a saved model holds."""
    return type(value) if any(get_origin(one) is Mapping for one in get_args(annotation)) else annotation


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
