"""Training options: network, augmentation, optimizer, compute. `Recipe` collects those that decide the result.

PyTorch, networks and routings are imported inside functions, so that the command line can read options without them.
"""

import dataclasses
import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from capsella.errors import bounded, check_argument, check_fields, check_types, unknown_name

if TYPE_CHECKING:
    import torch
    from torch import nn

    from capsella.models import ImageClassifier

# float32; or convolutions and dense layers in bfloat16, all else in float32.
ResolvedPrecision = Literal["32-true", "bf16-mixed"]
Precision = Literal["auto", "32-true", "bf16-mixed"]
Balance = Literal["auto", "none", "sampling"]
# Network options that follow from the images.
FROM_DATA = ("image_size", "channels", "classes")
# Seeds have at most this many bits: results are identified by their seeds, which should be short.
SEED_BITS = 22


@dataclass(frozen=True)
class ModelOptions:
    """A registered network and those of its options that are set; the others keep the network's defaults."""

    name: str
    """The registered network (`capsella list models` lists them)."""
    options: Annotated[Mapping[str, Any], tyro.conf.arg(name="")] = field(default_factory=dict)
    """Options of the network, except image size, channels and classes, which come from the data."""

    def replace(self, **options: Any) -> "ModelOptions":
        """Return the same network with other values of these options.

        >>> ModelOptions("sabour2017_cnn", {"dropout": 0.5}).replace(dropout=0.1)
        ModelOptions(name='sabour2017_cnn', options={'dropout': 0.1})
        """
        return ModelOptions(self.name, {**self.options, **options})

    def complete(self) -> "ModelOptions":
        """Return the options with the network's defaults filled in."""
        return ModelOptions(self.name, {**self.defaults(), **self.options})

    def defaults(self) -> dict[str, Any]:
        """Return the network's default of every option."""
        from capsella.models import model_function

        parameters = inspect.signature(model_function(self.name)).parameters
        return {key: parameter.default for key, parameter in parameters.items() if key not in FROM_DATA}

    def of_network(self, name: str) -> "ModelOptions":
        """Return another network: with these options if it has the same option names and routing, else its defaults.

        For example, the large variant of a network takes over the options of the small one.
        """
        mine, other = self.complete(), ModelOptions(name).complete()
        same_routing = type(mine.options.get("routing")) is type(other.options.get("routing"))
        return (
            ModelOptions(name, self.options) if mine.options.keys() == other.options.keys() and same_routing else other
        )

    def with_options(self, values: Mapping[str, Any]) -> "ModelOptions":
        """Return all options, defaults included, with some values replaced and checked.

        A routing is given by its name, and its options as "routing.iterations" and the like.

        Raises:
            ValueError: an unknown option or routing (suggests the nearest), or a value of another type.
        """
        from capsella.routing import routing_from_dict

        model = self.complete()
        for name in sorted(values):  # the routing before its options
            option, _, field = name.partition(".")
            value, routing = values[name], model.options.get("routing")
            if option == "routing" and (field or isinstance(value, str)):
                if routing is None:
                    raise ValueError(f"routing: {self.name} has no capsules to route")
                value = routing_from_dict({**routing.to_dict(), field: value} if field else {"name": value})
            model = model.replace(**{option: value})
        model.check()
        return model

    def check(self) -> None:
        """Check that the network has these options, and that their values have the right types.

        Raises:
            ValueError: an unknown option (suggests the nearest), or a value of another type.
        """
        from capsella.models import model_function

        known = self.defaults()
        for name in self.options:
            if name not in known:
                raise unknown_name(f"option of model {self.name!r}", name, known)
        check_types(model_function(self.name), self.options, "model")

    def create(self, image_size: int | tuple[int, int], channels: int, classes: Any) -> "ImageClassifier":
        """Create the network with fresh weights (see `create_model`)."""
        from capsella.models import create_model

        return create_model(self.name, image_size=image_size, channels=channels, classes=classes, **self.options)

    def to_dict(self) -> dict[str, Any]:
        """Return the options, JSON-ready: {"name", **options}."""
        from capsella.routing import Routing

        values = {key: value.to_dict() if isinstance(value, Routing) else value for key, value in self.options.items()}
        return {"name": self.name, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelOptions":
        """Read what `to_dict` returned.

        Raises:
            KeyError: no name.
            ValueError: an unknown routing, or one with other options.
        """
        from capsella.routing import routing_from_dict

        options = {key: value for key, value in values.items() if key != "name"}
        if isinstance(options.get("routing"), dict):
            options["routing"] = routing_from_dict(options["routing"])
        return cls(values["name"], options)


@dataclass(frozen=True)
class AugmentOptions:
    """Random changes of the training images; validation and test images are never changed.

    Raises:
        ArgumentError: a field is out of range.
    """

    shift: int = bounded(0, 0)
    """Shift by up to this many pixels in each direction."""
    padding_mode: Literal["zeros", "border"] = "zeros"
    """Pixels that a shift moves in: black, as in the papers, or the border's pixels repeated, which leaves no edge on
    images that are bright up to their borders."""
    rotation: float = bounded(0.0, 0, 180)
    """Rotate by up to this many degrees either way; the border's pixels are repeated."""
    stretch: float = bounded(0.0, 0, 1, ends="[)")
    """Stretch or shrink each axis by up to this fraction; the border's pixels are repeated."""
    flip: bool = False
    """Flip left-right and top-bottom, each with probability one half."""
    mirror: bool = False
    """Flip left-right only, with probability one half, as photographs allow."""
    rotation_sd: float = bounded(0.0, 0, 60)
    """Rotate half of the images by an angle from a normal distribution with this standard deviation in degrees, at most
    three of them."""
    narrow: float = bounded(0.0, 0, 1, ends="[)")
    """Make images narrower by less than this fraction of the width, typically by a third of that (half-normal)."""
    margin_shift: bool = False
    """Shift the non-black content within its black margins, typically by a third of a margin, in random directions."""
    erase: int = bounded(0, 0)
    """Black out a square with sides of this many pixels, at a random place at least as far from the border."""
    mixup: float = bounded(0.0, 0, 10)
    """Blend each image with another one of its batch by a share from Beta(mixup, mixup), and their losses likewise;
    0.2 is common. Not used in adaptations."""
    zoom: float = bounded(1.0, 1, 4)
    """Magnify or shrink each image by up to this factor, as other microscopes do; the border's pixels are repeated."""
    stain: float = bounded(0.0, 0, 1)
    """RGB only: change the amounts of two stains by up to this fraction each, and their colours a little."""
    white_balance: float = bounded(0.0, 0, 1)
    """Multiply each colour channel by a factor from e^−x to e^x, with x this number, as other cameras and lamps do."""
    gamma: float = bounded(0.0, 0, 1)
    """Raise pixel values to a power from e^−x to e^x, with x this number: lighter or darker midtones."""
    blur: float = bounded(0.0, 0, 10)
    """Blur each image by a Gaussian with a standard deviation of up to this many pixels."""
    noise: float = bounded(0.0, 0, 1)
    """Add noise with a standard deviation of up to this, where 1 is white."""
    downscale: float = bounded(1.0, 1, 8)
    """Shrink half of the batches by up to this factor and enlarge them again, as from a camera with fewer pixels."""
    jpeg: int = bounded(100, 1, 100)
    """Grey or RGB only: compress the images of half of the batches, after any `downscale`, as JPEG with a quality from
    this to 100."""
    microscope_keep_prob: float = bounded(0.0, 0, 1, ends="[)")
    """Probability that an image skips the changes from `zoom` to `jpeg`, so that the network stays accurate on images
    of its own domain."""

    def __post_init__(self) -> None:
        check_fields(self)

    def for_domain_shift(self) -> "AugmentOptions":
        """Return these options with the changes that other microscopes, stains and cameras make to images."""
        return dataclasses.replace(
            self,
            rotation=180.0,
            zoom=1.2,
            stain=0.5,
            white_balance=0.2,
            gamma=0.3,
            blur=1.0,
            noise=0.03,
            downscale=2.5,
            jpeg=30,
            microscope_keep_prob=0.3,
        )

    def changes(self) -> dict[str, Any]:
        """Return the fields that switch an augmentation on, i.e. differ from their defaults."""
        off = AugmentOptions()
        return {name: value for name, value in dataclasses.asdict(self).items() if value != getattr(off, name)}


@dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer, the schedule of its learning rate, and the average of the weights.

    Raises:
        ArgumentError: a field is out of range.
    """

    learning_rate: float = bounded(1e-3, 0, ends="(]")
    """Learning rate of the first step, or of the first after the warm-up; exponential decay counts warm-up steps."""
    schedule: Literal["exponential", "cosine", "steps"] = "exponential"
    """Exponential decay; half a cosine down to zero at the end of the training (Loshchilov and Hutter 2017); or steps,
    which multiply the learning rate by `decay` at each of `drops`."""
    warmup_steps: int = bounded(0, 0)
    """Raise the learning rate linearly over this many steps at the start."""
    decay: float = bounded(0.96, 0, ends="(]")
    """The exponential schedule multiplies the learning rate by this every `decay_steps` steps, smoothly; 1: constant.
    The schedule of steps multiplies by it at each drop, typically by 0.1."""
    decay_steps: int | None = bounded(2000, 0, ends="(]")
    """Steps per factor of `decay`; None: the whole training. Sabour et al. 2017 (code) multiply by 0.96 every 2000."""
    least_rate: float = bounded(0.0, 0)
    """Lower limit of the learning rate in the exponential schedule."""
    l2: float = bounded(0.0, 0)
    """L2 penalty on all weights: the weight decay of Adam and SGD."""
    gradient_clip: float | None = bounded(None, 0, ends="(]")
    """Largest norm of the whole gradient; longer gradients are scaled down to it."""
    ema: float | None = bounded(None, 0, 1, ends="()")
    """Evaluate and keep an exponential moving average of the weights, with this decay per step (0.999: over about the
    last 1,000 steps). Default: the weights themselves."""
    method: Literal["adam", "sgd", "logistic_regression"] = "adam"
    """Adam (β = 0.9 and 0.999, ε = 1e-8), or stochastic gradient descent, which needs learning rates like 0.1.
    Logistic regression fits a linear layer on a frozen backbone, without augmentation; one epoch is enough."""
    momentum: float = bounded(0.9, 0, 1, ends="[)")
    """SGD momentum; 0 disables it."""
    drops: tuple[float, ...] = ()
    """Fractions of the training after which the schedule of steps lowers the learning rate, e.g. 0.5 0.75."""

    def __post_init__(self) -> None:
        check_fields(self)
        rise = all(a < b for a, b in pairwise((0.0, *self.drops, 1.0)))
        check_argument(rise, "rise within (0, 1)", drops=self.drops)
        if self.schedule == "steps":
            check_argument(bool(self.drops), "be given for the schedule of steps", drops=self.drops)
            check_argument(self.decay <= 0.5, "be at most 0.5 for the schedule of steps", decay=self.decay)

    def learning_rate_at(self, step: int | float, total_steps: int) -> float:
        """Return the learning rate of a step, counted from 0, of a training of `total_steps`.

        >>> options = OptimizerOptions(learning_rate=1.0, schedule="cosine", warmup_steps=2)
        >>> [round(options.learning_rate_at(step, 10), 2) for step in (0, 1, 6, 10)]
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
        """Return an optimizer for these weights; the training sets its learning rate at each step."""
        import torch

        if self.method == "sgd":
            return torch.optim.SGD(
                weights, self.learning_rate, momentum=self.momentum, weight_decay=self.l2, fused=True
            )
        return torch.optim.Adam(weights, weight_decay=self.l2, fused=True)  # all in one pass over the weights


@dataclass(frozen=True)
class ComputeOptions:
    """Hardware options of a training, which are not part of the recipe.

    Raises:
        ArgumentError: a field is out of range.
    """

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """The device; "auto": a CUDA GPU if there is one, else the CPU."""
    devices: int = bounded(1, 1)
    """Number of devices, with distributed data parallel (DDP); on a CPU, processes. Leave it out under torchrun, which
    sets it, also for several machines: `torchrun --nnodes 2 --nproc-per-node 4 … -m capsella train …`."""
    threads: int | None = bounded(None, 1)
    """CPU threads; default: PyTorch's choice (OMP_NUM_THREADS, or the cores)."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class AdaptOptions:
    """Options of an adaptation to another domain.

    Raises:
        ArgumentError: a field is out of range.
    """

    how: Literal["statistics", "last", "all"] = "all"
    """The weights that change. statistics: means and variances of batch norms only, without labels. last: also the last
    layer. all: also all other weights, at a small learning rate."""
    steps: int = bounded(100, 1)
    """Optimizer steps, for last and all."""
    batch_size: int = bounded(32, 2)
    """Images per step, drawn evenly from the classes."""
    learning_rate: float | None = bounded(None, 0, ends="(]")
    """Learning rate of the first step; it falls to 0 by half a cosine. Default: the run's for last, a tenth of it for
    all."""
    per_class: int = bounded(10, 1)
    """Labelled images per class, drawn by --seed; at most half of the available ones. All others are tested."""
    seed: int = bounded(0, 0, 2**SEED_BITS - 1)
    """Seed of the labelled images that are drawn, their order, and their changes."""

    def __post_init__(self) -> None:
        check_fields(self)
