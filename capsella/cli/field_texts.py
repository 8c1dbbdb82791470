"""Texts of fields for `--help`: each in one piece, to be wrapped at the width of the screen."""

from typing import Any

import docstring_parser
from docstring_parser import Docstring, DocstringStyle


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
