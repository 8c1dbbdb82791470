"""`--on`, and what comes with it: one option for all commands that compute many runs."""

from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import docstring_parser
import tyro

from capsella.ray_cluster import Place

T = TypeVar("T")


@dataclass(frozen=True)
class _Placed(Generic[T]):
    options: Annotated[T, tyro.conf.arg(name="")]
    place: Annotated[Place, tyro.conf.arg(name="")] = Place()


def parse(options: type[T], words: list[str], prog: str) -> tuple[T, Place]:
    """The options of a command, and where it computes its runs."""
    text = docstring_parser.parse(options.__doc__ or "").description
    found: Any = tyro.cli(_Placed[options], args=words, prog=prog, description=text)  # type: ignore[valid-type]
    return found.options, found.place
