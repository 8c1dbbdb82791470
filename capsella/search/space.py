"""What a search may change: fields of a recipe by their paths, each with a range or with choices."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from capsella.errors import CapsellaError, check_argument, near_names
from capsella.training import Recipe
from capsella.training.command_line import leaves

Label = bool | int | float | str | None
"""What a study keeps of a value."""
SAME_FOR_ALL = (
    *("seed", "epochs", "epoch_images", "keep", "patience", "stop_at_error", "stop_on", "balance", "precision"),
    *("deterministic", "model.name", "model.routing", "data", "optimizer.warmup_steps", "optimizer.decay_steps"),
    *("loss.spread_steps", "loss.spread_schedule"),
)
"""What decides which images candidates learn from and are judged by, for how long and how: they must share it."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included: whole ones where both are, else any.

    log: as likely between 1 and 10 as between 10 and 100.

    Raises:
        ValueError: numbers that are not finite, or not rising; a logarithm of 0 or less.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        finite = math.isfinite(self.low) and math.isfinite(self.high)
        check_argument(finite and self.low < self.high, "be finite, low before high", range=(self.low, self.high))
        check_argument(not self.log or self.low > 0, "be above 0 where it is logarithmic", low=self.low)

    @property
    def whole(self) -> bool:
        """Whether it is of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that show whether the field takes all of them."""
        return self.low, self.high

    def every(self) -> Sequence[Label] | None:
        """What a study keeps of each value; None where there is no end of them."""
        return range(int(self.low), int(self.high) + 1) if self.whole else None

    def label(self, value: Any) -> Label:
        """What a study keeps of a value.

        Raises:
            ValueError: it is not in the range.
        """
        is_number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        check_argument(is_number and self.low <= value <= self.high, f"be in the range {self}", value=value)
        return value

    def value(self, label: Label) -> Any:
        """What `label` stands for."""
        return label

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', logarithmic' if self.log else ''}"


@dataclass(frozen=True, init=False)
class Choice:
    """One of these values.

    Raises:
        ValueError: fewer than two, or one twice.
    """

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)
        different = len({str(value) for value in values}) == len(values) > 1
        check_argument(different, "be at least two different ones", values=values)

    @property
    def labels(self) -> tuple[Label, ...]:
        """What a study keeps of the values: numbers, words and None as they are, anything else as its text."""
        return tuple(value if isinstance(value, Label) else str(value) for value in self.values)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that show whether the field takes all of them."""
        return self.values

    def every(self) -> Sequence[Label]:
        """What a study keeps of each value."""
        return self.labels

    def label(self, value: Any) -> Label:
        """What a study keeps of a value.

        Raises:
            ValueError: it is none of the choices.
        """
        check_argument(value in self.values, f"be one of {self}", value=value)
        return self.labels[self.values.index(value)]

    def value(self, label: Label) -> Any:
        """What `label` stands for."""
        return self.values[self.labels.index(label)]

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


@dataclass(frozen=True)
class Space:
    """What a search may change of a recipe.

    of: a range or choices by the path of a field, as `capsella recipes NAME` prints it.

    >>> Space({"optimizer.learning_rate": Range(1e-4, 1e-2, log=True), "loss.name": Choice("margin", "spread")})
    Space(of={'optimizer.learning_rate': Range(low=0.0001, high=0.01, log=True), 'loss.name': Choice(values=('margin', \
'spread'))})
    """

    of: Mapping[str, Range | Choice]

    def check(self, recipe: Recipe) -> None:
        """Every path is a field of the recipe, which takes all values; the recipe's own is among them.

        Raises:
            CapsellaError: not so; names the path and the rule.
        """
        if not self.of:
            raise CapsellaError("space: must name at least one field of the recipe")
        known = {path: value for path, value in leaves(recipe.complete()).items() if not _is_shared(path)}
        for path, values in self.of.items():
            if _is_shared(path):
                raise CapsellaError(f"space: {path} must be the same for every candidate")
            if path not in known:
                raise CapsellaError(f"space: the recipe has no field {path!r}; {near_names(path, known)}")
            try:
                values.label(known[path])
            except ValueError as error:
                raise CapsellaError(f"space: {path}: the recipe's own {error}; it is the first candidate") from error
            for value in values.ends:
                try:
                    with_value(recipe.complete(), path, value)
                except (ValueError, TypeError) as error:
                    raise CapsellaError(f"space: {path} = {value!r}: {error}") from error

    def labels_of(self, recipe: Recipe) -> dict[str, Label]:
        """The point of the space that the recipe itself is."""
        own = leaves(recipe.complete())
        return {path: values.label(own[path]) for path, values in self.of.items()}

    def recipe_at(self, recipe: Recipe, labels: Mapping[str, Label]) -> Recipe:
        """The recipe with the values at a point of the space.

        Raises:
            ValueError: values that do not go together.
        """
        recipe = recipe.complete()
        for path, values in self.of.items():
            recipe = with_value(recipe, path, values.value(labels[path]))
        return recipe

    def only(self, words: tuple[str, ...]) -> "Space":
        """The part that these paths name, or ends of paths.

        Raises:
            ValueError: a word that names none of them, or several.
        """
        chosen = {}
        for word in words:
            found = [path for path in self.of if path == word or path.endswith(f".{word}")]
            if len(found) != 1:
                names = [*self.of, *(path.rpartition(".")[2] for path in self.of)]
                hint = f"could be {' or '.join(found)}" if found else near_names(word, names)
                raise ValueError(f"tune: {word!r} must name one field of the space; {hint}")
            chosen[found[0]] = self.of[found[0]]
        return Space(chosen)

    def to_dict(self) -> dict[str, str]:
        """For reading: each path with its range or choices in words."""
        return {path: str(values) for path, values in self.of.items()}


def with_value(recipe: Recipe, path: str, value: Any) -> Recipe:
    """A complete recipe with another value at a path.

    Raises:
        ValueError: the field does not take it.
    """
    group, _, name = path.partition(".")
    if not name:
        return replace(recipe, **{group: value})
    if group != "model":
        return replace(recipe, **{group: replace(getattr(recipe, group), **{name: value})})
    option, _, field = name.partition(".")
    if field:
        options = recipe.model.options[option]
        check_argument(field in {one.name for one in fields(options)}, "be an option of the routing", **{path: field})
        value = replace(options, **{field: value})
    return recipe.with_model(**{option: value})


SpaceFunction = Callable[[Recipe], Space]
_SPACES: dict[str, SpaceFunction] = {}


def register_space(*recipes: str) -> Callable[[SpaceFunction], SpaceFunction]:
    """Decorator for a function from a recipe to its space; `recipes`: the names it is for."""

    def register(function: SpaceFunction) -> SpaceFunction:
        _SPACES.update(dict.fromkeys(recipes, function))
        return function

    return register


def registered_space(name: str) -> SpaceFunction | None:
    """The space registered for a recipe's name, where there is one."""
    return _SPACES.get(name)


def registered_spaces() -> list[str]:
    """The recipes that have a space of their own."""
    return sorted(_SPACES)


def _is_shared(path: str) -> bool:
    return path in SAME_FOR_ALL or path.startswith("data.")
