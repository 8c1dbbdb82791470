"""A recipe: everything that decides what a training run computes, as one frozen dataclass."""

import dataclasses
import math
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
    """Rotate by up to this many degrees either way, the border's pixels repeated outwards."""
    stretch: float = 0.0
    """Stretch or shrink each axis by up to this share of it, the border's pixels repeated outwards: things of other
    proportions."""
    flip: bool = False
    """Mirror left-right and top-bottom, each with probability one half."""
    rotation_sd: float = 0.0
    """Rotate half of the images by an angle from a normal distribution with this standard deviation in degrees, at most
    three of them."""
    squeeze: float = 0.0
    """Narrow by less than this share of the width, by a third of it as a rule: half-normally distributed."""
    margin_shift: bool = False
    """Shift within the margins around what is not black, by a third of a margin as a rule, in random directions."""
    erase: int = 0
    """Black out a square of this many pixels a side, at a random place as far from the border."""

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise ValueError(f"shift: must not be negative, got {self.shift}")
        if not 0 <= self.rotation <= 180:
            raise ValueError(f"rotation: must be from 0 to 180 degrees, got {self.rotation}")
        if not 0 <= self.stretch < 1:
            raise ValueError(f"stretch: must be a share in [0, 1), got {self.stretch}")
        if not 0 <= self.rotation_sd <= 60:
            raise ValueError(f"rotation_sd: must be from 0 to 60 degrees, got {self.rotation_sd}")
        if not 0 <= self.squeeze < 1:
            raise ValueError(f"squeeze: must be a share in [0, 1), got {self.squeeze}")
        if self.erase < 0:
            raise ValueError(f"erase: must not be negative, got {self.erase}")


@dataclass(frozen=True)
class OptimizerOptions:
    """Adam (β = 0.9 and 0.999, ε = 1e-8), the schedule of its learning rate, and the average of the weights."""

    learning_rate: float = 1e-3
    """Learning rate of the first step, or of the first after the warm-up."""
    schedule: Literal["exponential", "cosine"] = "exponential"
    """Exponential decay, or half a cosine down to zero at the end of the training (Loshchilov and Hutter 2017)."""
    warmup_steps: int = 0
    """The learning rate rises evenly over this many first steps."""
    decay: float = 0.96
    """The exponential schedule multiplies the learning rate by this every `decay_steps` steps, smoothly; 1 keeps it."""
    decay_steps: int = 2000
    """Steps for one factor of `decay`; 0.96 every 2000 in the authors' code."""
    l2: float = 0.0
    """L2 penalty on all weights, as Adam's weight decay."""
    gradient_clip: float | None = None
    """Largest norm of the whole gradient; longer ones are shortened to it."""
    ema: float | None = None
    """Evaluate and keep an exponential moving average of the weights, which each step leaves with this share of what it
    was (0.999: over about the last 1,000 steps); without it, the weights themselves."""

    def __post_init__(self) -> None:
        if not (self.learning_rate > 0 and self.decay > 0 and self.decay_steps > 0):
            raise ValueError(
                "learning_rate, decay, decay_steps: must be above 0, "
                f"got {self.learning_rate}, {self.decay}, {self.decay_steps}"
            )
        if self.schedule not in ("exponential", "cosine"):
            raise ValueError(f"schedule: must be 'exponential' or 'cosine', got {self.schedule!r}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps: must not be negative, got {self.warmup_steps}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema: must be between 0 and 1, both excluded, or None, got {self.ema}")
        if not self.l2 >= 0:
            raise ValueError(f"l2: must not be negative, got {self.l2}")
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise ValueError(f"gradient_clip: must be above 0 or None, got {self.gradient_clip}")

    def rate_at(self, step: int, total_steps: int) -> float:
        """The learning rate of a step, counted from 0, of a training of `total_steps`.

        >>> options = OptimizerOptions(learning_rate=1.0, schedule="cosine", warmup_steps=2)
        >>> [round(options.rate_at(step, 10), 2) for step in (0, 1, 6, 10)]
        [0.5, 1.0, 0.5, 0.0]
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "exponential":
            return float(self.learning_rate * self.decay ** (step / self.decay_steps))
        done = (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps)
        return self.learning_rate * (1 + math.cos(math.pi * min(1.0, done))) / 2


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
    keep: Literal["best", "last"] = "best"
    """The weights of which epoch: the one with the lowest validation error and, at an equal error, the lowest loss; or
    the last one, which suits a learning rate that falls to nothing, and few validation images."""
    patience: int | None = None
    """Stop after this many epochs without a better validation error or, at an equal error, a lower loss."""
    stop_at_error: float | None = None
    """Stop after the first epoch with this error in per cent or less, and keep that epoch's weights, so that networks
    compare at an equal error; with `epoch_images`, at a finer grain than whole passes. Where no epoch reaches it, the
    training is complete, and summary.json says that it was not reached."""
    stop_on: Literal["validation", "test"] = "validation"
    """The images on which `stop_at_error` looks: test is the papers' protocol where another set is the real test."""
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
    channels_last: bool = False
    """Store feature maps with the channels last, which convolutions of many channels may run faster with."""
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
        if self.keep not in ("best", "last"):
            raise ValueError(f"keep: must be 'best' or 'last', got {self.keep!r}")
        if self.keep == "last" and self.patience is not None:
            raise ValueError(f"patience: must be None where the last epoch is kept, got {self.patience}")
        if self.stop_at_error is not None and not 0 <= self.stop_at_error <= 100:
            raise ValueError(f"stop_at_error: must be from 0 to 100 per cent, got {self.stop_at_error}")
        if self.stop_on not in ("validation", "test"):
            raise ValueError(f"stop_on: must be 'validation' or 'test', got {self.stop_on!r}")
        if self.data.is_paired and self.augment != AugmentOptions():
            off = dataclasses.asdict(AugmentOptions())
            on = {name: value for name, value in dataclasses.asdict(self.augment).items() if value != off[name]}
            raise ValueError(
                f"augment: must be off for pairs, whose two images are shifted when they are drawn, got {on}"
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
