"""Search spaces: which fields of a recipe a search may change, and the values that it may try."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from capsella.errors import CapsellaError, check_argument, near_names
from capsella.models.base import model_function
from capsella.routing import DynamicRouting, EMRouting, Routing
from capsella.training.recipe import Recipe
from capsella.training.recipes import flatten

Label = bool | int | float | str | None  # how a study stores a value
# Fields that all candidates share: which images they learn from, how they are judged, and for how long.
SHARED = (
    *("seed", "epochs", "epoch_images", "keep", "patience", "stop_at_error", "stop_on", "balance", "precision"),
    *("deterministic", "model.name", "model.routing", "data", "optimizer.warmup_steps", "optimizer.decay_steps"),
    *("loss.spread_steps", "loss.spread_schedule"),
)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included: integers if both ends are integers.

    Args:
        low, high: the ends.
        log: sample logarithmically.

    Raises:
        ArgumentError: the ends are not finite or not rising, or a logarithmic range does not start above 0.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        finite = math.isfinite(self.low) and math.isfinite(self.high)
        check_argument(finite and self.low < self.high, "be finite, low before high", range=(self.low, self.high))
        check_argument(not self.log or self.low > 0, "be above 0 if the range is logarithmic", low=self.low)

    @property
    def is_whole(self) -> bool:
        """True for a range of integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The extreme values: a field that takes these takes all."""
        return self.low, self.high

    @property
    def size(self) -> float:
        """The number of values, infinite for a range of floats."""
        return int(self.high) - int(self.low) + 1 if self.is_whole else math.inf

    def label(self, value: Any) -> Label:
        """Return how a study stores `value`.

        Raises:
            ArgumentError: the value is outside the range.
        """
        is_number = isinstance(value, int if self.is_whole else int | float) and not isinstance(value, bool)
        check_argument(is_number and self.low <= value <= self.high, f"be in the range {self}", value=value)
        return value

    def value(self, label: Label) -> Any:
        """Return the value that a label stands for."""
        return label

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', logarithmic' if self.log else ''}"


@dataclass(frozen=True, init=False)
class Choice:
    """A list of values to choose from.

    Raises:
        ArgumentError: fewer than two values, or a value twice.
    """

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)
        different = len({str(value) for value in values}) == len(values) > 1
        check_argument(different, "be at least two different values", values=values)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The values as a study stores them: numbers, words and None as they are, anything else as text."""
        return tuple(value if isinstance(value, Label) else str(value) for value in self.values)

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values."""
        return self.values

    @property
    def size(self) -> float:
        """The number of values."""
        return len(self.values)

    def label(self, value: Any) -> Label:
        """Return how a study stores `value`.

        Raises:
            ArgumentError: the value is none of the choices.
        """
        check_argument(value in self.values, f"be one of {self}", value=value)
        return self.labels[self.values.index(value)]

    def value(self, label: Label) -> Any:
        """Return the value that a label stands for."""
        return self.values[self.labels.index(label)]

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


@dataclass(frozen=True)
class Space:
    """The fields of a recipe that a search may change.

    fields: a range or choices by the path of a field, as `capsella list recipes NAME` prints it.

    >>> Space({"optimizer.learning_rate": Range(1e-4, 1e-2, log=True), "loss.name": Choice("margin", "spread")})
    Space(fields={'optimizer.learning_rate': Range(low=0.0001, high=0.01, log=True), 'loss.name': \
Choice(values=('margin', 'spread'))})
    """

    fields: Mapping[str, Range | Choice]

    @property
    def size(self) -> float:
        """The number of points, infinite if any field is a range of floats."""
        return math.prod(values.size for values in self.fields.values())

    def check(self, recipe: Recipe) -> None:
        """Check that every path is a field of the recipe, which takes all values, its own among them.

        Raises:
            CapsellaError: names the path and the rule.
        """
        if not self.fields:
            raise CapsellaError("space: must name at least one field of the recipe")
        known = {path: value for path, value in flatten(recipe.complete()).items() if not _is_shared(path)}
        for path, values in self.fields.items():
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

    def point_of(self, recipe: Recipe) -> dict[str, Label]:
        """Return the recipe's own point of the space, as labels."""
        known = flatten(recipe.complete())
        return {path: values.label(known[path]) for path, values in self.fields.items()}

    def recipe_at(self, recipe: Recipe, point: Mapping[str, Label]) -> Recipe:
        """Return the recipe with the values of a point.

        Raises:
            ArgumentError: the values do not go together.
        """
        recipe = recipe.complete()
        for path, values in self.fields.items():
            recipe = with_value(recipe, path, values.value(point[path]))
        return recipe

    def only(self, words: tuple[str, ...]) -> "Space":
        """Return the fields with these paths, or ends of paths.

        Raises:
            ValueError: a word that names no field, or several.
        """
        chosen = {}
        for word in words:
            paths = [path for path in self.fields if path == word or path.endswith(f".{word}")]
            if len(paths) != 1:
                names = [*self.fields, *(path.rpartition(".")[2] for path in self.fields)]
                hint = f"could be {' or '.join(paths)}" if paths else near_names(word, names)
                raise ValueError(f"tune: {word!r} must name one field of the space; {hint}")
            chosen[paths[0]] = self.fields[paths[0]]
        return Space(chosen)

    def to_dict(self) -> dict[str, str]:
        """Return each path with its range or choices in words."""
        return {path: str(values) for path, values in self.fields.items()}


def with_value(recipe: Recipe, path: str, value: Any) -> Recipe:
    """Return a complete recipe with another value at a path.

    Raises:
        ArgumentError: the field does not take it.
    """
    group, _, name = path.partition(".")
    if not name:
        return replace(recipe, **{group: value})
    if group != "model":
        return replace(recipe, **{group: replace(getattr(recipe, group), **{name: value})})
    option, _, field = name.partition(".")
    if field:
        options = recipe.model.options[option]
        known = {found.name for found in dataclasses.fields(options)}
        check_argument(field in known, "be an option of the routing", **{path: field})
        value = replace(options, **{field: value})
    return recipe.with_model(**{option: value})


def _is_shared(path: str) -> bool:
    return path in SHARED or path.startswith("data.")


SpaceFunction = Callable[[Recipe], Space]
_SPACES: dict[str, SpaceFunction] = {}


def register_space(*recipes: str) -> Callable[[SpaceFunction], SpaceFunction]:
    """Register a function from a recipe to its space for recipes of these names."""

    def register(function: SpaceFunction) -> SpaceFunction:
        _SPACES.update(dict.fromkeys(recipes, function))
        return function

    return register


def registered_space(name: str) -> SpaceFunction | None:
    """Return the space registered for a recipe's name, if there is one."""
    return _SPACES.get(name)


def registered_spaces() -> list[str]:
    """Return the names of the recipes with a registered space."""
    return sorted(_SPACES)


# Choices for options that many networks have. The network's own value is added.
NETWORK_CHOICES: dict[str, tuple[Any, ...]] = {
    "pose_elements": (9, 16),
    "batch_norm": (False, True),
    "norm": ("batch", "group"),
    "coordinate_addition": (False, True),
    "types": (8, 16, 32),
    "stem_width": (8, 16, 32),
    "front_width": (32, 64, 128),
    "caps_width": (16, 32),
    "kernel": (5, 7, 9),
}


def default_space(recipe: Recipe, name: str = "") -> Space:
    """Return the space registered for a recipe's name, or else one made from its fields.

    The recipe's own values are always in it.
    """
    registered = registered_space(name)
    if registered is not None:
        return registered(recipe)
    recipe = recipe.complete()
    groups = (_training, _augmentation, _loss, _routing, _network)
    return Space({path: values for group in groups for path, values in group(recipe).items()})


def around(value: float, factor: float) -> Range:
    """Return the logarithmic range from `value / factor` to `value * factor`, rounded to two digits."""
    return Range(float(f"{value / factor:.2g}"), float(f"{value * factor:.2g}"), log=True)


def schedules(recipe: Recipe) -> dict[str, Choice]:
    """Return the choice between the recipe's own schedule and the cosine; none if its own is the cosine.

    An exponential schedule is no choice for other recipes: their decay would not suit it.
    """
    schedule = recipe.optimizer.schedule
    return {} if schedule == "cosine" else {"optimizer.schedule": Choice(schedule, "cosine")}


def choice_with(default: Any, *values: Any) -> Choice:
    """Return a choice of `values` and the recipe's own value."""
    return Choice(*dict.fromkeys((default, *values)))


def _training(recipe: Recipe) -> dict[str, Range | Choice]:
    options, batch = recipe.optimizer, recipe.batch_size
    return {
        "optimizer.learning_rate": around(options.learning_rate, 8.0),
        **schedules(recipe),
        "optimizer.ema": choice_with(options.ema, 0.98, 0.995),
        "batch_size": choice_with(batch, max(1, batch // 2), 2 * batch),
    }


def _augmentation(recipe: Recipe) -> dict[str, Range | Choice]:
    if recipe.data.is_paired:  # pairs are shifted when they are drawn
        return {}
    augment = recipe.augment
    fields: dict[str, Range | Choice] = {
        "augment.shift": Range(0, max(4, 2 * augment.shift)),
        "augment.rotation": Range(0.0, 180.0 if augment.rotation > 45 else max(20.0, augment.rotation)),
        "augment.mixup": choice_with(augment.mixup, 0.0, 0.2),
    }
    if augment.flip:  # only the user knows which images must not be mirrored
        fields["augment.flip"] = Choice(True, False)
    return fields


def _loss(recipe: Recipe) -> dict[str, Range | Choice]:
    fields: dict[str, Range | Choice] = {}
    if "routing" in recipe.model.options:
        # Losses on logits do not work with pairs.
        names = ("margin",) if recipe.data.is_paired else ("margin", "spread", "cross_entropy")
        if len({recipe.loss.name, *names}) > 1:
            fields["loss.name"] = choice_with(recipe.loss.name, *names)
    if recipe.model.options.get("reconstruction") and recipe.loss.reconstruction_weight > 0:
        fields["loss.reconstruction_weight"] = around(recipe.loss.reconstruction_weight, 10.0)
    return fields


def _routing(recipe: Recipe) -> dict[str, Range | Choice]:
    routing = recipe.model.options.get("routing")
    fields: dict[str, Range | Choice] = {}
    if isinstance(routing, EMRouting):
        fields = {
            "iterations": Range(1, max(3, routing.iterations)),
            "inverse_temperature": around(routing.inverse_temperature, 10.0),
            "variance_floor": around(routing.variance_floor, 10.0),
            "early_sharpness": choice_with(routing.early_sharpness, 1.0, 1 / 64),
            "beta_a_scale": choice_with(routing.beta_a_scale, 500.0, 2500.0),
        }
    elif isinstance(routing, DynamicRouting):
        fields = {"iterations": Range(1, max(5, routing.iterations))}
    return {f"model.routing.{name}": values for name, values in fields.items()} if isinstance(routing, Routing) else {}


def _network(recipe: Recipe) -> dict[str, Range | Choice]:
    """Choices for the network's own options, e.g. widths and kernels."""
    options, hints = recipe.model.options, get_type_hints(model_function(recipe.model.name))
    fields: dict[str, Range | Choice] = {}
    for name, values in NETWORK_CHOICES.items():
        words = _literals(hints.get(name))
        allowed = [value for value in values if not words or value in words]
        if name in options and len({options[name], *allowed}) > 1:
            fields[f"model.{name}"] = choice_with(options[name], *allowed)
    return fields


def _literals(hint: Any) -> set[str]:
    """Return the words of an annotation's `Literal`s; empty if it has none."""
    parts = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
    return {word for part in parts for word in get_args(part)}
