"""Search spaces: which fields of a recipe a search may change, and the values that it may try.

The values are Optuna's distributions. Optuna is an extra, so functions import it when they need it.
"""

import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsella.errors import CapsellaError, check_installed, near_names
from capsella.routing import DynamicRouting, EMRouting
from capsella.training.recipe import Recipe, flatten
from capsella.training.registry import with_fields

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

Label = bool | int | float | str | None  # a value of a field, as an Optuna study stores it
# Fields that all candidates share: which images they learn from, how they are judged, and for how long.
SHARED = (
    *("seed", "epochs", "epoch_images", "keep", "patience", "stop_at_error", "stop_on", "balance", "precision"),
    *("deterministic", "model.name", "model.routing", "optimizer.warmup_steps", "optimizer.decay_steps"),
    *("loss.spread_steps", "loss.spread_schedule"),
)


@dataclass(frozen=True)
class Space:
    """The fields of a recipe that a search may change.

    fields: Optuna distributions by dotted path of the field, as `capsella list recipes NAME` prints it.
    """

    fields: "Mapping[str, BaseDistribution]"

    def ends(self, path: str) -> tuple[Any, ...]:
        """Return the extreme values of a field, or all choices; empty if the space lacks it."""
        values = self.fields.get(path)
        return () if values is None else tuple(getattr(values, "choices", None) or (values.low, values.high))  # type: ignore[attr-defined]

    def check(self, recipe: Recipe) -> None:
        """Check that each path is a field of the recipe that accepts all its values and includes the recipe's own.

        Raises:
            CapsellaError: a field breaks a rule; the error names both.
        """
        from optuna.trial import create_trial

        if not self.fields:
            raise CapsellaError("space: must name at least one field of the recipe")
        known = {path: value for path, value in flatten(recipe.complete()).items() if not _is_shared(path)}
        for path, values in self.fields.items():
            if _is_shared(path):
                raise CapsellaError(f"space: {path} must be the same for every candidate")
            if path not in known:
                raise CapsellaError(f"space: the recipe has no field {path!r}; {near_names(path, known)}")
            try:
                create_trial(value=0.0, params={path: known[path]}, distributions={path: values})
                for value in self.ends(path):
                    with_fields(recipe, {path: value})
            except (ValueError, TypeError) as error:
                rule = f"have the recipe's own {known[path]!r}, and only values that it takes"
                raise CapsellaError(f"space: {path}: must {rule}: {error}") from error

    def point_of(self, recipe: Recipe) -> dict[str, Label]:
        """Return the recipe's own values of the searched fields."""
        known = flatten(recipe.complete())
        return {path: known[path] for path in self.fields}

    def recipe_at(self, recipe: Recipe, point: Mapping[str, Label]) -> Recipe:
        """Return the recipe with the values of a point of the space.

        Raises:
            ArgumentError: the values contradict each other.
        """
        return with_fields(recipe.complete(), point)

    def only(self, words: tuple[str, ...]) -> "Space":
        """Return the space of only the fields with these paths, or ends of paths.

        Raises:
            ValueError: a word names no field, or several.
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


def range_text(values: "BaseDistribution") -> str:
    """Return the range or choices of a distribution as text."""
    if choices := getattr(values, "choices", None):
        return ", ".join(map(str, choices))
    low, high, log = values.low, values.high, values.log  # type: ignore[attr-defined]
    step = getattr(values, "step", None) or 1
    return f"{low:g} to {high:g}{', logarithmic' if log else ''}{f', in steps of {step:g}' if step != 1 else ''}"


def _is_shared(path: str) -> bool:
    return path in SHARED or path.startswith("data.")


def read_space(file: Path) -> Space:
    """Return the `space` that a Python file sets. This runs the file: use only files that you trust.

    Raises:
        CapsellaError: the file raises an error, or sets no space.
    """
    check_installed("a search", "search", "optuna")
    try:
        space = runpy.run_path(str(file)).get("space")
    except Exception as error:  # any mistake in the user's file
        raise CapsellaError(f"{file}: {type(error).__name__}: {error}") from error
    if not isinstance(space, Space):
        raise CapsellaError(f"{file}: must set `space` to a Space, got {type(space).__name__}")
    return space


def default_space(recipe: Recipe) -> Space:
    """Return a space made from the recipe's fields; its own values are always in it."""
    recipe = recipe.complete()
    groups = (_training, _augmentation, _loss, _routing, _network)
    return Space({path: values for group in groups for path, values in group(recipe).items()})


def around(value: float, factor: float) -> "FloatDistribution":
    """Return the logarithmic range from `value / factor` to `value * factor`, rounded to two significant digits."""
    from optuna.distributions import FloatDistribution

    return FloatDistribution(float(f"{value / factor:.2g}"), float(f"{value * factor:.2g}"), log=True)


def choice_with(default: Any, *values: Any) -> "CategoricalDistribution":
    """Return a choice of `values` and the recipe's own value."""
    from optuna.distributions import CategoricalDistribution

    return CategoricalDistribution(list(dict.fromkeys((default, *values))))


def schedules(recipe: Recipe) -> "dict[str, BaseDistribution]":
    """Return the choice between the recipe's own schedule and cosine; empty if its own is cosine.

    Exponential decay is not offered to other recipes, because their value of `decay` would not suit it.
    """
    schedule = recipe.optimizer.schedule
    return {} if schedule == "cosine" else {"optimizer.schedule": choice_with(schedule, "cosine")}


def _training(recipe: Recipe) -> "dict[str, BaseDistribution]":
    options, batch = recipe.optimizer, recipe.batch_size
    return {
        "optimizer.learning_rate": around(options.learning_rate, 8.0),
        **schedules(recipe),
        "optimizer.ema": choice_with(options.ema, 0.98, 0.995),
        "batch_size": choice_with(batch, max(1, batch // 2), 2 * batch),
    }


def _augmentation(recipe: Recipe) -> "dict[str, BaseDistribution]":
    from optuna.distributions import FloatDistribution, IntDistribution

    augment = recipe.augment
    if recipe.data.is_paired:  # pairs are shifted when they are drawn
        return {}
    fields: dict[str, BaseDistribution] = {
        "augment.shift": IntDistribution(0, max(4, 2 * augment.shift)),
        "augment.rotation": FloatDistribution(0.0, 180.0 if augment.rotation > 45 else max(20.0, augment.rotation)),
        "augment.mixup": choice_with(augment.mixup, 0.0, 0.2),
    }
    # Only the user knows which images must not be mirrored.
    return fields | ({"augment.flip": choice_with(True, False)} if augment.flip else {})


def _loss(recipe: Recipe) -> "dict[str, BaseDistribution]":
    fields: dict[str, BaseDistribution] = {}
    if "routing" in recipe.model.options and not recipe.data.is_paired:  # losses on logits do not work with pairs
        fields["loss.name"] = choice_with(recipe.loss.name, "margin", "spread", "cross_entropy")
    if recipe.model.options.get("reconstruction") and recipe.loss.reconstruction_weight > 0:
        fields["loss.reconstruction_weight"] = around(recipe.loss.reconstruction_weight, 10.0)
    return fields


def _routing(recipe: Recipe) -> "dict[str, BaseDistribution]":
    from optuna.distributions import IntDistribution

    routing = recipe.model.options.get("routing")
    fields: dict[str, BaseDistribution] = {}
    if isinstance(routing, EMRouting):
        fields = {
            "iterations": IntDistribution(1, max(3, routing.iterations)),
            "inverse_temperature": around(routing.inverse_temperature, 10.0),
            "variance_floor": around(routing.variance_floor, 10.0),
            "early_likelihood_weight": choice_with(routing.early_likelihood_weight, 1.0, 1 / 64),
            "beta_a_scale": choice_with(routing.beta_a_scale, 500.0, 2500.0),
        }
    elif isinstance(routing, DynamicRouting):
        fields = {"iterations": IntDistribution(1, max(5, routing.iterations))}
    return {f"model.routing.{name}": values for name, values in fields.items()}


# Choices for options that many networks have. The network's own value is added.
NETWORK_CHOICES: dict[str, tuple[Any, ...]] = {
    "pose_elements": (9, 16),
    "batch_norm": (False, True),
    "coordinate_addition": (False, True),
    "types": (8, 16, 32),
    "stem_width": (8, 16, 32),
    "front_width": (32, 64, 128),
    "caps_width": (16, 32),
    "kernel": (5, 7, 9),
    "width": (8, 12, 16, 24),
    "dropout": (0.0, 0.2),
}


def _network(recipe: Recipe) -> "dict[str, BaseDistribution]":
    """Return choices for the network's own options, e.g. widths and kernels."""
    options = recipe.model.options
    return {
        f"model.{name}": choice_with(options[name], *values)
        for name, values in NETWORK_CHOICES.items()
        if name in options and len({options[name], *values}) > 1
    }
