"""A recipe: everything that decides what a training run computes, as one frozen dataclass."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from capsella.data import DataOptions
from capsella.errors import CapsellaError, unknown_name
from capsella.losses import FOR_TWO_CLASSES, LossOptions
from capsella.routing import Routing, routing_from_dict

SEED_BITS = 22  # what the step number and the purpose of a random number leave of torch's 64 bits


@dataclass(frozen=True)
class AugmentOptions:
    """Random changes of the training images; validation and test images are never changed."""

    shift: int = 0
    """Shift by up to this many pixels in each direction, zeros moving in."""
    rotation: float = 0.0
    """Rotate by up to this many degrees either way."""
    flip: bool = False
    """Mirror left-right and top-bottom, each with probability one half."""

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise ValueError(f"shift: must not be negative, got {self.shift}")
        if not 0 <= self.rotation <= 180:
            raise ValueError(f"rotation: must be from 0 to 180 degrees, got {self.rotation}")


@dataclass(frozen=True)
class OptimizerOptions:
    """Adam (β = 0.9 and 0.999, ε = 1e-8) with exponential decay of the learning rate."""

    learning_rate: float = 1e-3
    """Learning rate of the first step."""
    decay: float = 0.96
    """The learning rate is multiplied by this every `decay_steps` steps, smoothly; 1 keeps it."""
    decay_steps: int = 2000
    """Steps for one factor of `decay`; 0.96 every 2000 in the authors' code."""
    l2: float = 0.0
    """L2 penalty on all weights, as Adam's weight decay."""
    gradient_clip: float | None = None
    """Largest norm of the whole gradient; longer ones are shortened to it."""

    def __post_init__(self) -> None:
        if not (self.learning_rate > 0 and self.decay > 0 and self.decay_steps > 0):
            raise ValueError(
                "learning_rate, decay, decay_steps: must be above 0, "
                f"got {self.learning_rate}, {self.decay}, {self.decay_steps}"
            )
        if not self.l2 >= 0:
            raise ValueError(f"l2: must not be negative, got {self.l2}")
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise ValueError(f"gradient_clip: must be above 0 or None, got {self.gradient_clip}")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return float(self.learning_rate * self.decay ** (step / self.decay_steps))


@dataclass(frozen=True)
class Recipe:
    """A complete training run. Two runs of equal recipes on equal hardware and versions compute the same.

    Raises:
        ValueError: a field is outside its range.
    """

    model: dict[str, Any]
    """The registered network (`name`) and its options; image size, channels and classes come from the data."""
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
    batch_size: int = 128
    """Images a step, over all devices together."""
    patience: int | None = None
    """Stop after this many epochs without a better validation error or, at an equal error, a lower loss."""
    seed: int = 0
    """Seed of the weights, the order of the images, augmentation and dropout."""
    deterministic: bool = False
    """Refuse operations whose result may differ from run to run."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute."""
    devices: int = 1
    """How many of them, with distributed data parallel (DDP); on a CPU, processes."""
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    """float32, or convolutions and dense layers in bfloat16; routing always runs in float32."""
    checkpoint_seconds: float = 60.0
    """Write the checkpoint that a resumed run starts from at least this often; it is written after every epoch too."""

    def __post_init__(self) -> None:
        if "name" not in self.model:
            raise ValueError(f"model: must have the name of a registered network, got {self.model}")
        for name in ("epochs", "batch_size", "devices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("patience", "epoch_images"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"{name}: must be at least 1, got {number}")
        if self.data.is_paired and self.augment != AugmentOptions():
            raise ValueError(
                f"augment: must be off for pairs, whose two images are shifted when they are drawn, got {self.augment}"
            )
        if self.data.is_paired and self.loss.name not in FOR_TWO_CLASSES:
            raise ValueError(f"loss: must be {' or '.join(FOR_TWO_CLASSES)} for pairs, got {self.loss.name}")
        if not 0 <= self.seed < 2**SEED_BITS:
            raise ValueError(f"seed: must be from 0 to {2**SEED_BITS - 1}, got {self.seed}")
        if not self.checkpoint_seconds >= 0:
            raise ValueError(f"checkpoint_seconds: must not be negative, got {self.checkpoint_seconds}")
        if self.batch_size % self.devices:
            raise ValueError(f"batch_size: must be a multiple of devices = {self.devices}, got {self.batch_size}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `Recipe.from_dict` reads it back."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        values["model"] = {
            key: value.to_dict() if isinstance(value, Routing) else value for key, value in self.model.items()
        }
        for group in ("data", "augment", "loss", "optimizer"):
            values[group] = {
                key: str(value) if isinstance(value, Path) else value
                for key, value in dataclasses.asdict(values[group]).items()
            }
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Recipe":
        """The recipe that `to_dict` wrote.

        Raises:
            CapsellaError: a field is missing, unknown or out of range.
        """
        try:
            model = dict(values["model"])
            if isinstance(model.get("routing"), dict):
                model["routing"] = routing_from_dict(model["routing"])
            data = dict(values["data"])
            for key in ("path", "split_file"):
                data[key] = None if data[key] is None else Path(data[key])
            groups = {
                "model": model,
                "data": DataOptions(**data),
                "augment": AugmentOptions(**values["augment"]),
                "loss": LossOptions(**values["loss"]),
                "optimizer": OptimizerOptions(**values["optimizer"]),
            }
            return cls(**{**values, **groups})
        except KeyError as error:
            raise CapsellaError(f"not a recipe of this version of capsella: the field {error} is missing") from error
        except (TypeError, ValueError) as error:
            raise CapsellaError(f"not a recipe of this version of capsella: {error}") from error


RECIPES: dict[str, Recipe] = {}


def get_recipe(name: str) -> Recipe:
    """The recipe registered under `name`.

    Raises:
        ValueError: unknown; suggests the nearest.
    """
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]
