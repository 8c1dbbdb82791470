"""A recipe: everything that decides what a training run computes, as one frozen dataclass."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from capsella.data import DataOptions
from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum, check_types, near_names
from capsella.image_options import ValueRange
from capsella.losses import FOR_TWO_CLASSES, Classification, LossOptions
from capsella.training.options import AugmentOptions, Balance, ModelOptions, OptimizerOptions, Precision

SEED_BITS = 22  # of the seeds of trainings, which results are known by; `mixed_seed` would take larger ones
Made = TypeVar("Made")
OF_THE_MACHINE = ("accelerator", "devices", "checkpoint_seconds")
"""Fields that recipes had once; they are `Machine`'s now, and change no result."""


@dataclass(frozen=True)
class Recipe:
    """A complete training run. Two runs of equal recipes on equal hardware and versions compute the same.

    Raises:
        ValueError: a field is outside its range.
    """

    model: ModelOptions
    """The network; its image size, channels and classes come from the data."""
    data: DataOptions
    """The images."""
    augment: AugmentOptions = field(default_factory=AugmentOptions)
    """Random changes of the training images."""
    loss: LossOptions = field(default_factory=LossOptions)
    """What is minimised."""
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    """How it is minimised."""
    epochs: int = 50
    """Passes over the training images."""
    epoch_images: int | None = None
    """An epoch is this many training images, drawn anew for each, some perhaps twice, instead of a pass over all. For
    sets so large that one wants to validate more often than after each pass."""
    balance: Balance = "none"
    """What is done for rare classes: draw all classes evenly (sampling), or weigh their losses (weights); no image
    counts more than five times. Then the epoch is kept, and waited for, by the balanced error: of each class the share
    that was not found, in the mean. `auto`: sampling where the largest class has at least 1.5 times the training images
    of the smallest. The run keeps what that was when it began."""
    batch_size: int = 128
    """Images a step, over all devices together."""
    keep: Literal["best", "last"] = "best"
    """The weights of which epoch: the one with the lowest validation error and, at an equal error, the lowest loss; or
    the last one, which suits a learning rate that falls to nothing, and few validation images."""
    patience: int | None = None
    """Stop after this many epochs without a better validation error or, at an equal error, a lower loss."""
    stop_at_error: float | None = None
    """Stop after the first epoch with this error in per cent or less, and keep that epoch's weights, so that networks
    compare at an equal error; with `--epoch-images`, at a finer grain than whole passes. Where no epoch reaches it, the
    training is complete, and summary.json says that it was not reached."""
    stop_on: Literal["validation", "test"] = "validation"
    """The images on which `--stop-at-error` looks: test is the papers' protocol where another set is the real test."""
    seed: int = 0
    """Seed of the weights, the order of the images, augmentation and dropout."""
    deterministic: bool = False
    """Refuse operations whose result may differ from run to run."""
    precision: Precision = "32-true"
    """float32, or convolutions and dense layers in bfloat16, and on processors with AVX512-BF16 the products of EM
    routing's votes; all other routing runs in float32. `auto`: bfloat16 where this machine is clearly faster with it
    (`capsella info` tells). The run keeps what that was when it began."""
    channels_last: bool = False
    """Store feature maps with the channels last, which convolutions of many channels may run faster with."""

    def __post_init__(self) -> None:
        for group in (self, self.model.options, self.data, self.augment, self.loss, self.optimizer):
            _check_finite(group)
        for option in self.model.options.values():
            if dataclasses.is_dataclass(option):  # a routing, whose module imports PyTorch
                from capsella.routing.base import check_saved

                check_saved(option)  # type: ignore[arg-type]
        check_minimum(1, epochs=self.epochs, batch_size=self.batch_size)
        check_minimum(1, patience=self.patience, epoch_images=self.epoch_images)
        known = self.balance in get_args(Balance)
        check_argument(known, "be 'auto', 'none', 'sampling' or 'weights'", balance=self.balance)
        if self.data.is_paired:
            check_argument(self.balance in ("auto", "none"), "be 'none' for pairs", balance=self.balance)
        check_argument(self.keep in ("best", "last"), "be 'best' or 'last'", keep=self.keep)
        kept = self.keep == "best" or self.patience is None
        check_argument(kept, "be None where the last epoch is kept", patience=self.patience)
        share = self.stop_at_error
        check_argument(share is None or 0 <= share <= 100, "be from 0 to 100 per cent", stop_at_error=share)
        check_argument(self.stop_on in ("validation", "test"), "be 'validation' or 'test'", stop_on=self.stop_on)
        if self.data.is_paired and self.augment != AugmentOptions():
            off = dataclasses.asdict(AugmentOptions())
            on = {name: value for name, value in dataclasses.asdict(self.augment).items() if value != off[name]}
            check_argument(not on, "be off for pairs, whose two images are shifted when they are drawn", augment=on)
        if self.data.is_paired and self.loss.name not in FOR_TWO_CLASSES:
            raise ArgumentError("loss", f"be {' or '.join(FOR_TWO_CLASSES)} for pairs", self.loss.name)
        check_argument(0 <= self.seed < 2**SEED_BITS, f"be from 0 to {2**SEED_BITS - 1}", seed=self.seed)

    def with_model(self, **options: Any) -> "Recipe":
        """The recipe with other values of these options of its network."""
        return dataclasses.replace(self, model=self.model.replace(**options))

    def with_found(self, value_range: ValueRange | None, cell_radius: float | None) -> "Recipe":
        """With the range and scale that its images were read by, so that all who read them again do as the training."""
        data = self.data.with_measured(value_range, cell_radius)
        return self if data == self.data else dataclasses.replace(self, data=data)

    def with_network(self, name: str) -> "Recipe":
        """With another network, see `ModelOptions.of_network`. A CNN brings cross-entropy, capsules margin loss.

        A loss stays where both networks have capsules, or neither. For pairs, whose images have two classes, the
        cross-entropy is the sigmoid one.

        Raises:
            ValueError: no network is registered under `name`.
        """
        model, loss = self.model.of_network(name), self.loss
        had_capsules, has_capsules = ("routing" in one.complete().options for one in (self.model, model))
        if had_capsules != has_capsules:
            of_cnn: Classification = "sigmoid_cross_entropy" if self.data.is_paired else "cross_entropy"
            loss = dataclasses.replace(loss, name="margin" if has_capsules else of_cnn)
        return dataclasses.replace(self, model=model, loss=loss)

    def complete(self) -> "Recipe":
        """The recipe with every option of its network, defaults included."""
        return dataclasses.replace(self, model=self.model.complete())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `Recipe.from_dict` reads it back."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        values["model"] = self.model.to_dict()
        values["data"] = self.data.to_dict()
        for group in ("augment", "loss", "optimizer"):
            values[group] = dataclasses.asdict(values[group])
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Recipe":
        """The recipe that `to_dict` wrote.

        Raises:
            CapsellaError: a field is missing, unknown or out of range.
        """
        try:
            optimizer = dict(values["optimizer"])
            optimizer["drops"] = _tuple(optimizer.get("drops", ()))
            groups = {
                "model": ModelOptions.from_dict(values["model"]),
                "data": DataOptions.from_dict(values["data"]),
                "augment": _made(AugmentOptions, values["augment"], "augment"),
                "loss": _made(LossOptions, values["loss"], "loss"),
                "optimizer": _made(OptimizerOptions, optimizer, "optimizer"),
            }
            fields = {name: value for name, value in values.items() if name not in OF_THE_MACHINE}
            return _made(cls, {**fields, **groups})
        except KeyError as error:
            raise CapsellaError(f"not a recipe of this version of capsella: the field {error} is missing") from error
        except (TypeError, ValueError) as error:
            raise CapsellaError(f"not a recipe of this version of capsella: {error}") from error


def _tuple(value: Any) -> Any:
    """JSON has lists for tuples."""
    return tuple(value) if isinstance(value, list) else value


def _made(kind: type[Made], values: Mapping[str, Any], group: str = "") -> Made:
    """A dataclass of values that were read, each of its field's type; `group`: what its fields are called by."""
    known = {item.name for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise ValueError(f"{f'{group}.' if group else ''}{name}: no such field; {near_names(name, known)}")
    check_types(kind, values, group)
    return kind(**values)


def _check_finite(group: Any) -> None:
    """No field of a dataclass, and no option of a network, is infinite or not a number; a `ValueError` names it."""
    if dataclasses.is_dataclass(group):
        group = {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}
    for name, value in group.items():
        if dataclasses.is_dataclass(value):
            _check_finite(value)
        check_argument(not isinstance(value, float) or math.isfinite(value), "be a finite number", **{name: value})
