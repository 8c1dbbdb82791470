"""What a recipe is made of: the network, the changes of its training images, the optimizer; and where it is trained."""

import dataclasses
import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from capsella.errors import check_argument, check_minimum, check_types, not_negative, unknown_name

if TYPE_CHECKING:
    import torch
    from torch import nn

    from capsella.models import ImageClassifier

# PyTorch, networks and routings are imported where they are used: the command line reads these options without them.


Exact = Literal["32-true", "bf16-mixed"]
"""float32; or convolutions and dense layers in bfloat16, all else in float32."""
Precision = Literal["auto", "32-true", "bf16-mixed"]
Balance = Literal["auto", "none", "sampling", "weights"]
FROM_DATA = ("image_size", "channels", "classes")
"""Options of a network that its images decide."""


@dataclass(frozen=True)
class ModelOptions:
    """A registered network, and those of its options that are set; the others keep the network's defaults."""

    name: str
    """The registered network (`capsella models` lists them)."""
    options: Annotated[Mapping[str, Any], tyro.conf.arg(name="")] = field(default_factory=dict)
    """Its options but image size, channels and classes, which come from the data."""

    def replace(self, **options: Any) -> "ModelOptions":
        """The same network with other values of these options.

        >>> ModelOptions("sabour2017_cnn", {"dropout": 0.5}).replace(dropout=0.1)
        ModelOptions(name='sabour2017_cnn', options={'dropout': 0.1})
        """
        return ModelOptions(self.name, {**self.options, **options})

    def complete(self) -> "ModelOptions":
        """With the network's defaults filled in."""
        return ModelOptions(self.name, {**self.defaults(), **self.options})

    def defaults(self) -> dict[str, Any]:
        """What the network takes where an option is not set."""
        from capsella.models import model_function

        parameters = inspect.signature(model_function(self.name)).parameters
        return {key: parameter.default for key, parameter in parameters.items() if key not in FROM_DATA}

    def of_network(self, name: str) -> "ModelOptions":
        """Another network: with these options where it has the very same ones, or else with its own defaults.

        The large network of a small one has the same: options of the same names, and a routing of the same kind.
        """
        mine, other = self.complete(), ModelOptions(name).complete()
        alike = mine.options.keys() == other.options.keys() and type(mine.options.get("routing")) is type(
            other.options.get("routing")
        )
        return ModelOptions(name, self.options) if alike else other

    def with_routing(self, name: str) -> "ModelOptions":
        """With another routing at its defaults.

        Raises:
            ValueError: no routing is registered under `name`, or the network has no capsules.
        """
        from capsella.routing import ROUTINGS

        if "routing" not in self.complete().options:
            raise ValueError(f"routing: {self.name} has no capsules to route")
        if name not in ROUTINGS:
            raise unknown_name("routing", name, ROUTINGS)
        return self.replace(routing=ROUTINGS[name]())

    def check(self) -> None:
        """The network has these options, of these types: for what was written by hand.

        Raises:
            ValueError: it has none of this name (suggests the nearest), or the value is of another type.
        """
        from capsella.models import model_function

        known = self.defaults()
        for name in self.options:
            if name not in known:
                raise unknown_name(f"option of model {self.name!r}", name, known)
        check_types(model_function(self.name), self.options, "model")

    def create(self, image_size: int | tuple[int, int], channels: int, classes: Any) -> "ImageClassifier":
        """The network with fresh weights: see `create_model`."""
        from capsella.models import create_model

        return create_model(self.name, image_size=image_size, channels=channels, classes=classes, **self.options)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: {"name", **options}."""
        from capsella.routing import Routing

        values = {key: value.to_dict() if isinstance(value, Routing) else value for key, value in self.options.items()}
        return {"name": self.name, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelOptions":
        """What `to_dict` wrote.

        Raises:
            KeyError: no name. ValueError: a routing that is not registered, or one with other options.
        """
        from capsella.routing import routing_from_dict

        options = {key: value for key, value in values.items() if key != "name"}
        if isinstance(options.get("routing"), dict):
            options["routing"] = routing_from_dict(options["routing"])
        return cls(values["name"], options)


@dataclass(frozen=True)
class AugmentOptions:
    """Random changes of the training images; validation and test images are never changed."""

    shift: int = 0
    """Shift by up to this many pixels in each direction."""
    border: Literal["zero", "repeat"] = "zero"
    """What a shift moves in: black, as in the papers, or the border's pixels repeated, which leaves no edge on images
    that are bright up to their borders."""
    rotation: float = 0.0
    """Rotate by up to this many degrees either way, the border's pixels repeated outwards."""
    stretch: float = 0.0
    """Stretch or shrink each axis by up to this share of it, the border's pixels repeated outwards: things of other
    proportions."""
    flip: bool = False
    """Mirror left-right and top-bottom, each with probability one half."""
    mirror: bool = False
    """Mirror left-right alone, with probability one half, as photographs allow."""
    rotation_sd: float = 0.0
    """Rotate half of the images by an angle from a normal distribution with this standard deviation in degrees, at most
    three of them."""
    squeeze: float = 0.0
    """Narrow by less than this share of the width, by a third of it as a rule: half-normally distributed."""
    margin_shift: bool = False
    """Shift within the margins around what is not black, by a third of a margin as a rule, in random directions."""
    erase: int = 0
    """Black out a square of this many pixels a side, at a random place as far from the border."""
    mixup: float = 0.0
    """Blend each image with another one of its batch, by a share from Beta(mixup, mixup), and their losses with them:
    0.2 as a rule. In adaptations it is left out."""
    zoom: float = 1.0
    """Magnify or shrink each image by up to this factor, as other microscopes do; the border's pixels are repeated."""
    stain: float = 0.0
    """Only for RGB: change the amounts of two stains by up to this share each, and their colours a little."""
    white_balance: float = 0.0
    """Make each colour brighter or darker by up to e to this power, as other cameras and lamps do."""
    gamma: float = 0.0
    """Raise images to powers between e to minus and plus this number: lighter or darker middle tones."""
    blur: float = 0.0
    """Blur each image by a Gaussian with a standard deviation of up to this many pixels."""
    noise: float = 0.0
    """Add noise with a standard deviation of up to this, where 1 is white."""
    coarse: float = 1.0
    """Shrink half of the batches by up to this factor and enlarge them again, as from a camera of fewer pixels."""
    jpeg: int = 100
    """Only for grey or RGB: save each image of those batches as JPEG in between, with a quality from this to 100."""
    own_microscope: float = 0.0
    """Share of the images that the changes from `zoom` to `jpeg` leave as they are, so that the network does not lose
    its own laboratory."""

    def __post_init__(self) -> None:
        not_negative(shift=self.shift, erase=self.erase)
        check_argument(self.border in ("zero", "repeat"), "be 'zero' or 'repeat'", border=self.border)
        check_argument(0 <= self.rotation <= 180, "be from 0 to 180 degrees", rotation=self.rotation)
        check_argument(0 <= self.mixup <= 10, "be from 0 to 10", mixup=self.mixup)
        check_argument(0 <= self.stretch < 1, "be a share in [0, 1)", stretch=self.stretch)
        check_argument(0 <= self.rotation_sd <= 60, "be from 0 to 60 degrees", rotation_sd=self.rotation_sd)
        check_argument(0 <= self.squeeze < 1, "be a share in [0, 1)", squeeze=self.squeeze)
        check_argument(1 <= self.zoom <= 4, "be a factor from 1 to 4", zoom=self.zoom)
        for name in ("stain", "white_balance", "gamma", "noise"):
            check_argument(0 <= getattr(self, name) <= 1, "be from 0 to 1", **{name: getattr(self, name)})
        check_argument(0 <= self.own_microscope < 1, "be a share in [0, 1)", own_microscope=self.own_microscope)
        check_argument(1 <= self.coarse <= 8, "be a factor from 1 to 8", coarse=self.coarse)
        check_argument(1 <= self.jpeg <= 100, "be a quality from 1 to 100", jpeg=self.jpeg)
        check_argument(0 <= self.blur <= 10, "be from 0 to 10 pixels", blur=self.blur)


@dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer, the schedule of its learning rate, and the average of the weights."""

    learning_rate: float = 1e-3
    """Learning rate of the first step, or of the first after the warm-up; an exponential schedule decays meanwhile."""
    schedule: Literal["exponential", "cosine", "steps"] = "exponential"
    """Exponential decay; half a cosine down to zero at the end of the training (Loshchilov and Hutter 2017); or steps,
    which multiply the learning rate by `decay` at each of `drops`."""
    warmup_steps: int = 0
    """The learning rate rises evenly over this many first steps."""
    decay: float = 0.96
    """The exponential schedule multiplies the learning rate by this every `decay_steps` steps, smoothly; 1 keeps it.
    The schedule of steps multiplies by it at each drop: by 0.1 as a rule."""
    decay_steps: int | None = 2000
    """Steps for one factor of `decay`; 0.96 every 2000 in the authors' code. None: the whole training, however long."""
    least_rate: float = 0.0
    """The exponential schedule falls no lower than this."""
    l2: float = 0.0
    """L2 penalty on all weights, as Adam's and SGD's weight decay."""
    gradient_clip: float | None = None
    """Largest norm of the whole gradient; longer ones are shortened to it."""
    ema: float | None = None
    """Evaluate and keep an exponential moving average of the weights, which each step leaves with this share of what it
    was (0.999: over about the last 1,000 steps); without it, the weights themselves."""
    method: Literal["adam", "sgd"] = "adam"
    """Adam (β = 0.9 and 0.999, ε = 1e-8), or stochastic gradient descent, which wants learning rates such as 0.1."""
    momentum: float = 0.9
    """Of SGD; 0 is without."""
    drops: tuple[float, ...] = ()
    """When the schedule of steps lowers the learning rate: after these shares of the training, as 0.5 0.75. No other
    schedule looks at them."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "decay", "decay_steps"):
            number = getattr(self, name)
            check_argument(number is None or number > 0, "be above 0", **{name: number})
        schedules = ("exponential", "cosine", "steps")
        check_argument(self.schedule in schedules, "be 'exponential', 'cosine' or 'steps'", schedule=self.schedule)
        check_argument(self.method in ("adam", "sgd"), "be 'adam' or 'sgd'", method=self.method)
        check_argument(0 <= self.momentum < 1, "be in [0, 1)", momentum=self.momentum)
        rise = all(a < b for a, b in pairwise((0.0, *self.drops, 1.0)))
        check_argument(rise, "rise within (0, 1)", drops=self.drops)
        check_argument(
            bool(self.drops) or self.schedule != "steps", "be given for the schedule of steps", drops=self.drops
        )
        falls = self.schedule != "steps" or self.decay <= 0.5
        check_argument(falls, "be at most 0.5 for the schedule of steps, whose drops multiply by it", decay=self.decay)
        not_negative(warmup_steps=self.warmup_steps, l2=self.l2, least_rate=self.least_rate)
        check_argument(self.ema is None or 0 < self.ema < 1, "be between 0 and 1, both excluded, or None", ema=self.ema)
        clip = self.gradient_clip
        check_argument(clip is None or clip > 0, "be above 0 or None", gradient_clip=clip)

    def rate_at(self, step: int | float, total_steps: int) -> float:
        """The learning rate of a step, counted from 0, of a training of `total_steps`.

        >>> options = OptimizerOptions(learning_rate=1.0, schedule="cosine", warmup_steps=2)
        >>> [round(options.rate_at(step, 10), 2) for step in (0, 1, 6, 10)]
        [0.5, 1.0, 0.5, 0.0]
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "exponential":
            decayed = self.learning_rate * self.decay ** (step / (self.decay_steps or max(1, total_steps)))
            return float(max(self.least_rate, decayed))
        if self.schedule == "steps":
            dropped = sum(step >= share * total_steps for share in self.drops)
            return float(self.learning_rate * self.decay**dropped)
        done = (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps)
        return self.learning_rate * (1 + math.cos(math.pi * min(1.0, done))) / 2

    def create(self, weights: "Iterable[nn.Parameter]") -> "torch.optim.Optimizer":
        """The optimizer of these weights; each step sets its learning rate by `rate_at`."""
        import torch

        if self.method == "sgd":
            return torch.optim.SGD(
                weights, self.learning_rate, momentum=self.momentum, weight_decay=self.l2, fused=True
            )
        return torch.optim.Adam(weights, weight_decay=self.l2, fused=True)  # all in one pass over the weights


@dataclass(frozen=True)
class Machine:
    """Where a recipe is trained, and how safely. Two trainings that differ in this alone are of the same recipe.

    Raises:
        ValueError: a field is outside its range.
    """

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; "auto": on a GPU of CUDA where there is one, else on the processor."""
    devices: int = 1
    """How many of them, with distributed data parallel (DDP); on a CPU, processes. Left out under torchrun, which says
    it, also for several machines: `torchrun --nnodes 2 --nproc-per-node 4 … -m capsella train …`."""
    threads: int | None = None
    """Threads of the processor; default: PyTorch's choice (OMP_NUM_THREADS, or the cores)."""
    checkpoint_seconds: float = 60.0
    """Write the checkpoint that a resumed run starts from at least this often; it is written after every epoch too."""

    def __post_init__(self) -> None:
        check_minimum(1, devices=self.devices, threads=self.threads)
        not_negative(checkpoint_seconds=self.checkpoint_seconds)
        check_argument(math.isfinite(self.checkpoint_seconds), "be finite", checkpoint_seconds=self.checkpoint_seconds)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)
