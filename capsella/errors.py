"""Errors and warnings that a user can act on."""

import dataclasses
import difflib
import inspect
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal, get_args, get_origin, get_type_hints


class CapsellaError(Exception):
    """An error outside the program: in a file, a download, a run folder, on a disk."""


class ArgumentError(ValueError):
    """An argument, or a field of options, that breaks a rule.

    Attributes:
        argument: its name.
        rule: what it must do or be, e.g. "be between 0 and 2".
        got: the value that was received.
        hint: one suggestion, or an empty string.
    """

    def __init__(self, argument: str, rule: str, got: object, hint: str = "", *, shown: str | None = None) -> None:
        """`shown` is how the message prints `got`; by default its `repr`."""
        self.argument, self.rule, self.got, self.hint = argument, rule, got, hint
        suffix = f"; {hint}" if hint else ""
        super().__init__(f"{argument}: must {rule}, got {repr(got) if shown is None else shown}{suffix}")


class BusyError(CapsellaError):
    """Another process holds the lock that this one needs."""


class NoMemoryError(CapsellaError):
    """Out of memory, on the CPU or a GPU."""


@contextmanager
def memory_errors(what: object) -> Iterator[None]:
    """Turn out-of-memory errors of Python and PyTorch into a `NoMemoryError` whose message begins with `what`."""
    try:
        yield
    except Exception as error:
        of_pytorch = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
        if isinstance(error, NoMemoryError) or not (isinstance(error, MemoryError) or of_pytorch):
            raise
        why = f" ({str(error).splitlines()[0]})" if str(error) else ""
        text = f"{what}: out of memory{why}; use a smaller batch or smaller images"
        raise NoMemoryError(text) from error


class CapsellaWarning(UserWarning):
    """A warning that tells the user what to do. The command line prints it as one line."""


_warned: set[str] = set()


def warn_once(reason: str, text: str) -> None:
    """Issue a `CapsellaWarning`, once per reason and process."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(text, CapsellaWarning, stacklevel=2)


@contextmanager
def errors_of(what: object) -> Iterator[None]:
    """Turn a `ValueError` or `CapsellaError` into a `CapsellaError` whose message begins with `what`."""
    try:
        yield
    except (ValueError, CapsellaError) as error:
        raise CapsellaError(f"{what}: {error}") from error


def check_installed(what: str, extra: str, *packages: str, otherwise: str = "") -> None:
    """Raise `CapsellaError` with the pip command if `what` needs packages of an extra that are not installed."""
    if missing := [package for package in packages if find_spec(package) is None]:
        raise CapsellaError(f"{what} needs {', '.join(missing)}: pip install 'capsella[{extra}]'{otherwise}")


def check_argument(holds: bool, rule: str, **got: object) -> None:
    """Check that an argument, or a field of options, follows a rule.

    Args:
        holds: whether it does; False raises `ArgumentError`.
        rule: the end of the sentence "NAME: must …".
        got: the argument, as NAME=value; several if the rule is about their combination.

    >>> check_argument(0 < 3 < 2, "be between 0 and 2", size=3)
    Traceback (most recent call last):
    capsella.errors.ArgumentError: size: must be between 0 and 2, got 3
    """
    if not holds:
        values = tuple(got.values())
        shown = ", ".join(map(repr, values))
        raise ArgumentError(", ".join(got), rule, values[0] if len(values) == 1 else values, shown=shown)


def check_minimum(minimum: float, **numbers: float | None) -> None:
    """Check that each number is None or at least `minimum`; the ArgumentError names the first that is neither."""
    for name, number in numbers.items():
        check_argument(number is None or number >= minimum, f"be at least {minimum}", **{name: number})


def not_negative(**numbers: float) -> None:
    """Check that no number is negative; the ArgumentError names the first that is."""
    for name, number in numbers.items():
        check_argument(number >= 0, "not be negative", **{name: number})


def bounded(default: Any, low: float, high: float = math.inf, *, ends: str = "[]") -> Any:
    """Return a dataclass field for a number from `low` to `high`, or None; "(" or ")" in `ends` exclude an end."""
    return dataclasses.field(default=default, metadata={"bounds": (low, high, ends)})


def check_fields(options: Any) -> None:
    """Check the bounds of a dataclass's numbers, and the choices of its `Literal` fields.

    Raises:
        ArgumentError: names the first field that breaks its rule.
    """
    for item in dataclasses.fields(options):
        value = getattr(options, item.name)
        if get_origin(item.type) is Literal:
            choices = get_args(item.type)
            rule = f"be {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
            check_argument(value in choices, rule, **{item.name: value})
        if "bounds" in item.metadata and value is not None:
            low, high, ends = item.metadata["bounds"]
            above = value > low if ends[0] == "(" else value >= low
            below = value < high if ends[1] == ")" else value <= high
            rule = f"be {'above' if ends[0] == '(' else 'at least'} {low:g}"
            if high < math.inf:
                rule += f" and {'below' if ends[1] == ')' else 'at most'} {high:g}"
            check_argument(above and below, rule, **{item.name: value})


def check_types(kind: Any, values: Mapping[str, Any], group: str = "") -> None:
    """Check values, e.g. from a JSON file, against the type annotations of a dataclass or function.

    Names without an annotation are skipped, and so are `Literal` types, which dataclasses check themselves.

    Args:
        kind: the dataclass or function.
        values: the values, by name.
        group: a prefix for names in errors.

    Raises:
        ArgumentError: a value has another type.

    >>> def train(epochs: int): ...
    >>> check_types(train, {"epochs": "2"})
    Traceback (most recent call last):
    capsella.errors.ArgumentError: epochs: must be of type int, got '2'
    """
    from typeguard import CollectionCheckStrategy, TypeCheckError, check_type  # slow to import

    try:
        hints = get_type_hints(kind)
    except NameError:  # an annotation is imported for type checkers only
        return
    for name, value in values.items():
        hint = hints.get(name, Any)
        said = inspect.formatannotation(hint).replace("typing.", "")
        if "Literal[" in said:
            continue
        try:
            check_type(value, hint, collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
            fits = not (isinstance(value, bool) and hint in (int, float))  # in Python, a bool is an int
        except TypeCheckError:
            fits = False
        if not fits:
            raise ArgumentError(f"{group}.{name}" if group else name, f"be of type {said}", value)


def unknown_name(what: str, name: str, known: Iterable[str], where: str | None = None) -> ArgumentError:
    """Return the error for a name that is not registered. It suggests the nearest names, as `near_names` does."""
    return ArgumentError(what, "be a registered name", name, near_names(name, known, where))


def near_names(name: str, known: Iterable[str], where: str | None = None) -> str:
    """Return a hint with the nearest names; if none is near, with `where` to find them, or with all of them.

    >>> near_names("--epoch", ["--epochs", "--seed"]), near_names("x", ["a", "b"])
    ('did you mean --epochs?', 'known: a, b')
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else where or f"known: {', '.join(names)}"


def pluralize(number: int, what: str) -> str:
    """Return a number with a noun in the singular or the plural.

    >>> pluralize(1, "image"), pluralize(1200, "image")
    ('1 image', '1,200 images')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
