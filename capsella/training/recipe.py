"""A recipe: everything that decides what a training computes; and its JSON file."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from capsella.data import DataOptions
from capsella.errors import (
    ArgumentError,
    CapsellaError,
    bounded,
    check_argument,
    check_fields,
    check_types,
    errors_of,
    near_names,
)
from capsella.files import write_json
from capsella.image_options import CellCut, ValueRange
from capsella.losses import FOR_TWO_CLASSES, Classification, LossOptions
from capsella.training.config import (
    SEED_BITS,
    AugmentOptions,
    Balance,
    ModelOptions,
    OptimizerOptions,
    Precision,
)

AnyOptions = TypeVar("AnyOptions")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a training computes: equal recipes on equal hardware and versions compute the same.

    Raises:
        ArgumentError: a field is out of range.
    """

    model: ModelOptions
    """The network; its image size, channels and classes come from the data."""
    data: DataOptions
    """The images."""
    augment: AugmentOptions = field(default_factory=AugmentOptions)
    """Random changes of the training images."""
    loss: LossOptions = field(default_factory=LossOptions)
    """The loss function."""
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    """The optimizer and its schedule."""
    epochs: int = bounded(50, 1)
    """Passes over the training images."""
    epoch_images: int | None = bounded(None, 1)
    """Training images per epoch, newly drawn for each, instead of a pass over all. For data sets so large that you want
    to validate more often than after each pass."""
    balance: Balance = "none"
    """Treatment of rare classes: sampling draws all classes evenly, but no image more than five times as often. The
    kept epoch is then that with the lowest balanced error, the mean over classes. `auto`: sampling if the largest class
    has at least 1.5 times the training images of the smallest; a run keeps its choice."""
    batch_size: int = bounded(128, 1)
    """Images per step, over all devices together."""
    keep: Literal["best", "last"] = "best"
    """The epoch whose weights are kept: the one with the lowest validation error and, at an equal error, the lowest
    loss; or the last one, which suits a learning rate that ends at zero, and few validation images."""
    patience: int | None = bounded(None, 1)
    """Stop after this many epochs without a better validation error or, at an equal error, a lower loss."""
    stop_at_error: float | None = bounded(None, 0, 100)
    """Stop after the first epoch with at most this error in per cent and keep its weights, to compare networks at
    an equal error; with `--epoch-images` this is checked more often than after each pass. If no epoch reaches it, the
    training runs to its end, and summary.json reports that."""
    stop_on: Literal["validation", "test"] = "validation"
    """The images whose error `--stop-at-error` limits; `test` is for papers that then report on another data set."""
    seed: int = bounded(0, 0, 2**SEED_BITS - 1)
    """Seed of the weights, the order of the images, augmentation and dropout."""
    deterministic: bool = False
    """Refuse operations whose result may differ from run to run."""
    precision: Precision = "32-true"
    """float32, or convolutions and dense layers in bfloat16, and on processors with AVX512-BF16 the products of EM
    routing's votes; all other routing runs in float32. `auto`: bfloat16 if this machine is clearly faster with it
    (`capsella info` shows it); a run keeps its choice."""
    channels_last: bool = False
    """Store feature maps with the channels last, which can make convolutions of many channels faster."""

    def __post_init__(self) -> None:
        check_fields(self)
        for group in (self, self.model.options, self.data, self.augment, self.loss, self.optimizer):
            _check_finite(group)
        for option in self.model.options.values():
            if dataclasses.is_dataclass(option):  # a routing, whose module imports PyTorch
                from capsella.routing.base import check_saved

                check_saved(option)  # type: ignore[arg-type]
        if self.optimizer.method == "logistic_regression":
            check_argument(self.epochs == 1, "be 1 for a logistic regression, which is fitted once", epochs=self.epochs)
        if self.keep == "last":
            check_argument(self.patience is None, "be None if the last epoch is kept", patience=self.patience)
        if self.data.is_paired:
            check_argument(self.balance in ("auto", "none"), "be 'none' for pairs", balance=self.balance)
            changes = self.augment.changes()
            check_argument(not changes, "be off for pairs, which are shifted when they are drawn", augment=changes)
            rule = f"be {' or '.join(FOR_TWO_CLASSES)} for pairs"
            check_argument(self.loss.name in FOR_TWO_CLASSES, rule, loss=self.loss.name)

    def with_model(self, **options: Any) -> "Recipe":
        """Return the recipe with other values of these options of its network."""
        return dataclasses.replace(self, model=self.model.replace(**options))

    def with_measured(self, value_range: ValueRange | None, cut: CellCut | None) -> "Recipe":
        """Return the recipe with the measured value range, cell radius and stain of its images, to read them alike."""
        data = self.data.with_measured(value_range, cut)
        return self if data == self.data else dataclasses.replace(self, data=data)

    def with_network(self, name: str) -> "Recipe":
        """Return the recipe with another network (see `ModelOptions.of_network`).

        Changing from capsules to a CNN sets the loss to cross-entropy (sigmoid for pairs, whose images have two
        classes), and changing to capsules sets it to the margin loss. Otherwise the loss stays.

        Raises:
            ValueError: no network is registered under `name`.
        """
        model, loss = self.model.of_network(name), self.loss
        had_capsules, has_capsules = ("routing" in options.complete().options for options in (self.model, model))
        if had_capsules != has_capsules:
            of_cnn: Classification = "sigmoid_cross_entropy" if self.data.is_paired else "cross_entropy"
            loss = dataclasses.replace(loss, name="margin" if has_capsules else of_cnn)
        return dataclasses.replace(self, model=model, loss=loss)

    def complete(self) -> "Recipe":
        """Return the recipe with every option of its network, defaults included."""
        return dataclasses.replace(self, model=self.model.complete())

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe, JSON-ready; `Recipe.from_dict` reads it back."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        values |= {"model": self.model.to_dict(), "data": self.data.to_dict()}
        return values | {group: dataclasses.asdict(values[group]) for group in ("augment", "loss", "optimizer")}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Recipe":
        """Read what `to_dict` returned.

        Raises:
            CapsellaError: a field is missing, unknown or out of range.
        """
        try:
            optimizer = dict(values["optimizer"])
            if isinstance(optimizer.get("drops"), list):  # JSON has lists for tuples
                optimizer["drops"] = tuple(optimizer["drops"])
            groups = {
                "model": ModelOptions.from_dict(values["model"]),
                "data": DataOptions.from_dict(values["data"]),
                "augment": _read(AugmentOptions, values["augment"], "augment"),
                "loss": _read(LossOptions, values["loss"], "loss"),
                "optimizer": _read(OptimizerOptions, optimizer, "optimizer"),
            }
            return _read(cls, {**values, **groups})
        except KeyError as error:
            raise CapsellaError(f"not a recipe of this version of capsella: the field {error} is missing") from error
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, ArgumentError) and "--plugin" in error.hint:  # its routing is not loaded
                raise CapsellaError(str(error)) from error
            raise CapsellaError(f"not a recipe of this version of capsella: {error}") from error


def _read(kind: type[AnyOptions], values: Mapping[str, Any], group: str = "") -> AnyOptions:
    """Return an instance of a dataclass from JSON values, each checked against its field's type."""
    known = {item.name for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            raise ArgumentError(f"{group}.{name}".lstrip("."), "be a field", value, near_names(name, known))
    check_types(kind, values, group)
    return kind(**values)


def _check_finite(group: Any) -> None:
    """Check that no field of a dataclass, and no option of a network, is infinite or NaN."""
    if dataclasses.is_dataclass(group):
        group = {item.name: getattr(group, item.name) for item in dataclasses.fields(group)}
    for name, value in group.items():
        if dataclasses.is_dataclass(value):
            _check_finite(value)
        check_argument(not isinstance(value, float) or math.isfinite(value), "be a finite number", **{name: value})


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe with all defaults filled in, for `read_recipe`; image paths are relative to the working folder."""
    write_json(path, {"recipe": recipe.complete().to_dict()})


def read_recipe(path: Path) -> Recipe:
    """Read the recipe in a JSON file, which may also be a run's config.json.

    Raises:
        CapsellaError: no such file, no JSON, or no recipe of this version.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CapsellaError(f"{path}: must be a recipe's JSON file: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("recipe"), dict):
        raise CapsellaError(f'{path}: must hold {{"recipe": {{…}}}}, as winner.json of `capsella search`')
    with errors_of(path):
        recipe = Recipe.from_dict(values["recipe"])
        recipe.model.check()
        return recipe


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return every field of `value` and its parts by dotted path, e.g. "model.routing.iterations"."""
    from capsella.routing import Routing  # brings PyTorch

    if isinstance(value, Routing):
        return {path: value.name, **flatten(dataclasses.asdict(value), path)}
    if isinstance(value, ModelOptions):
        value = {"name": value.name, **value.options}
    if dataclasses.is_dataclass(value):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if not isinstance(value, dict):
        return {path: value}
    fields: dict[str, Any] = {}
    for key, below in value.items():
        fields |= flatten(below, f"{path}.{key}".strip("."))
    return fields
