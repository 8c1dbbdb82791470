"""The space of a recipe that brings none: what is worth changing of its training, its routing and its network."""

from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

from capsella.losses import LossOptions
from capsella.models.base import model_function
from capsella.routing import DynamicRouting, EMRouting, Routing
from capsella.search.space import Choice, Range, Space, registered_space
from capsella.training import Recipe

OF_NETWORKS: dict[str, tuple[Any, ...]] = {
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
"""Choices for options that networks may have; the network's own value is among them, too."""


def default_space(recipe: Recipe, name: str = "") -> Space:
    """What a search changes of a recipe: the space that is registered for its name, or else one made of its fields.

    The recipe's own values are in it: wide around its numbers, and among the choices.
    """
    registered = registered_space(name)
    if registered is not None:
        return registered(recipe)
    recipe = recipe.complete()
    parts = (_training, _augmentation, _loss, _routing, _network)
    return Space({path: values for part in parts for path, values in part(recipe).items()})


def around(value: float, factor: float) -> Range:
    """A logarithmic range from a `factor`th of a number to as many times of it, to two digits."""
    return Range(float(f"{value / factor:.2g}"), float(f"{value * factor:.2g}"), log=True)


def schedules(recipe: Recipe) -> dict[str, Choice]:
    """The recipe's own schedule and the cosine; nothing to choose where they are one.

    An exponential one is no choice for other recipes: with a decay that is not theirs, the rate would stay, or vanish.
    """
    own = recipe.optimizer.schedule
    return {} if own == "cosine" else {"optimizer.schedule": Choice(own, "cosine")}


def with_own(own: Any, *values: Any) -> Choice:
    """A choice with the recipe's own value in it."""
    return Choice(*dict.fromkeys((own, *values)))


def _training(recipe: Recipe) -> dict[str, Range | Choice]:
    options, batch = recipe.optimizer, recipe.batch_size
    return {
        "optimizer.learning_rate": around(options.learning_rate, 8.0),
        **schedules(recipe),
        "optimizer.ema": with_own(options.ema, 0.98, 0.995),
        "batch_size": with_own(batch, max(1, batch // 2), 2 * batch),
    }


def _augmentation(recipe: Recipe) -> dict[str, Range | Choice]:
    if recipe.data.is_paired:  # whose images are shifted when they are drawn
        return {}
    own = recipe.augment
    turned = 180.0 if own.rotation > 45 else max(20.0, own.rotation)
    found: dict[str, Range | Choice] = {
        "augment.shift": Range(0, max(4, 2 * own.shift)),
        "augment.rotation": Range(0.0, turned),
        "augment.mixup": with_own(own.mixup, 0.0, 0.2),
    }
    if own.flip:  # what must not be mirrored, only the user knows
        found["augment.flip"] = Choice(True, False)
    return found


def _loss(recipe: Recipe) -> dict[str, Range | Choice]:
    found: dict[str, Range | Choice] = {}
    options: LossOptions = recipe.loss
    if "routing" in recipe.model.options:
        others: tuple[str, ...] = ("margin", "spread", "cross_entropy")
        if recipe.data.is_paired:
            others = ("margin",)  # the other one needs logits
        if len({options.name, *others}) > 1:
            found["loss.name"] = with_own(options.name, *others)
    if recipe.model.options.get("reconstruction") and options.reconstruction_weight > 0:
        found["loss.reconstruction_weight"] = around(options.reconstruction_weight, 10.0)
    return found


def _of_em(routing: EMRouting) -> dict[str, Range | Choice]:
    return {
        "iterations": Range(1, max(3, routing.iterations)),
        "inverse_temperature": around(routing.inverse_temperature, 10.0),
        "variance_floor": around(routing.variance_floor, 10.0),
        "early_sharpness": with_own(routing.early_sharpness, 1.0, 1 / 64),
        "beta_a_scale": with_own(routing.beta_a_scale, 500.0, 2500.0),
    }


def _of_dynamic(routing: DynamicRouting) -> dict[str, Range | Choice]:
    return {"iterations": Range(1, max(5, routing.iterations))}


OF_ROUTINGS: dict[type[Routing], Callable[[Any], dict[str, Range | Choice]]] = {
    EMRouting: _of_em,
    DynamicRouting: _of_dynamic,
}


def _routing(recipe: Recipe) -> dict[str, Range | Choice]:
    routing = recipe.model.options.get("routing")
    fields = OF_ROUTINGS.get(type(routing)) if isinstance(routing, Routing) else None
    return {} if fields is None else {f"model.routing.{name}": values for name, values in fields(routing).items()}


def _network(recipe: Recipe) -> dict[str, Range | Choice]:
    """What the network lets one choose, as widths and kernels."""
    own, hints = recipe.model.options, get_type_hints(model_function(recipe.model.name))
    found: dict[str, Range | Choice] = {}
    for name, values in OF_NETWORKS.items():
        words = _words(hints.get(name))
        taken = [value for value in values if not words or value in words]
        if name in own and len({own[name], *taken}) > 1:
            found[f"model.{name}"] = with_own(own[name], *taken)
    return found


def _words(hint: Any) -> set[str]:
    """All that an annotation lets one choose from; empty where it is of no words."""
    parts = [one for one in (hint, *get_args(hint)) if get_origin(one) is Literal]
    return {word for one in parts for word in get_args(one)}
