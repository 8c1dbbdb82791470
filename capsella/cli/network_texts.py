"""What the docstring of a network says of it and of each of its options; one may point to another's."""

import inspect
import re

import docstring_parser

from capsella.models import model_function


def summary(name: str) -> str:
    """The first paragraph, in one line."""
    return " ".join(_docstring(name).partition("\n\n")[0].split())


def description(name: str) -> str:
    """What stands before the options, but for the pointer to those of another network."""
    text = _docstring(name).partition("\n\nArgs:")[0].partition("\n\nRaises:")[0]
    return re.sub(r"\s*\bArgs as for `\w+`(\.|, and$)?", "", text)


def option_texts(name: str) -> dict[str, str]:
    """The text of each option, in one line; of those that another network has alike, the other's; or nothing.

    Raises:
        ValueError: no network is registered under `name`.
    """
    own: dict[str, str] = {}
    for param in docstring_parser.parse(_docstring(name), docstring_parser.DocstringStyle.GOOGLE).params:
        text = " ".join((param.description or "").split())
        own |= {option: _resolved(option, text) for option in param.arg_name.split(", ")}
    pointer = re.search(r"\b(?:Args as for|As) `(\w+)`", _docstring(name))
    texts = own if pointer is None else option_texts(pointer[1]) | own
    return {option: texts.get(option, "") for option in inspect.signature(model_function(name)).parameters}


def _resolved(option: str, text: str) -> str:
    if (pointer := re.match(r"as for `(\w+)`", text)) is None:
        return text
    return option_texts(pointer[1]).get(option, "").rstrip(".") + text[pointer.end() :]


def _docstring(name: str) -> str:
    return inspect.getdoc(model_function(name)) or ""
