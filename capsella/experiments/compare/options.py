"""`ComparisonOptions`: which networks on which images, in how much time; the fields are flags of `capsella compare`."""

import dataclasses
import math
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from capsella.data import DataOptions, NpzData, data_from
from capsella.data.options import Duplicates, FileData
from capsella.errors import ArgumentError, check_argument, check_minimum
from capsella.image_options import Cells, Fit
from capsella.training.config import AugmentOptions, Precision

VALIDATION = 0.15  # fraction of the training images
FOLDS, CROSS_VALIDATED_BELOW = 5, 2_000  # with fewer images, every image is tested in one of five folds
SEEDS = 3  # trainings of each network without folds
SHARES = (0.25, 0.5)  # fractions of the training images in the learning curve, besides 1
RATES = {1: (1.0,), 3: (1 / 3, 1.0, 3.0)}  # learning rates that are tried, as factors of the recipe's


@dataclass(frozen=True, kw_only=True)
class CommonComparisonOptions:
    """The options of a comparison that --help shows."""

    networks: tuple[str, ...] = ("default",)
    """Networks (capsella list models), shell patterns of them, or groups: `default`, `small` and `thesis`. Default: a
    light capsule network, a small residual CNN, and a pretrained CNN, fine-tuned if there is time."""
    minutes: float = 30.0
    """Time for all trainings, divided over the networks; no training is longer than in its recipe."""
    folds: int | None = None
    """Cross-validation: every image is tested once, in one of this many folds. 1 holds out one test set. Default: 5 for
    fewer than 2,000 images, else 1."""
    seeds: int | None = None
    """Trainings of each network per fold. Default: 1 with folds, else 3, or fewer if the time is short."""
    size: int | None = None
    """Pixels per side that networks trained from scratch see. Default: 64, or less for smaller images."""
    fit: Fit | None = None
    """Make oblong images square: `crop` the sides off, `pad` with the border's colour, or `squash`."""
    group: str | None = None
    """The patient of each image, so that none is in two splits: a table (`patients.csv`) with the columns file and
    group, or a regular expression whose one capture group, found in the path, names it."""
    backbone: str = "efficientnet_lite0"
    """The pretrained network: `efficientnet_lite0` (ImageNet), a .pth file with its weights, a run, a folder, or a name
    on the Hugging Face hub (OWNER/NAME)."""
    latency_limit: float = 50.0
    """Highest median time per image in milliseconds, on this machine's processor."""
    skip_broken: bool = False
    """Leave out images that cannot be read, and list them, instead of stopping at the first."""
    out: Path | None = None
    """Folder of the runs and the report. Default: runs/compare-IMAGES."""
    dry_run: bool = False
    """Measure the speed of each network, print the plan, and stop."""
    verbose: bool = False
    """Print every epoch of every training."""


@dataclass(frozen=True)
class ComparisonOptions(CommonComparisonOptions):
    """Which networks are compared on which images, in how much time.

    Raises:
        ArgumentError: a field is outside its range.
    """

    images: Annotated[str, tyro.conf.Suppress] = "images/"
    """A folder with one subfolder per class, an .npz file, or the name of a public data set."""
    _: KW_ONLY
    fine_tune: bool | None = None
    """Train the pretrained network, too, instead of fitting a logistic regression to its features. Default:
    EfficientNet-Lite0, if the time then allows a third of the usual epochs of the others, and two seeds or folds."""
    rates: Literal[1, 3] = 1
    """Number of learning rates per network: 1, the recipe's; or 3, also a third and three times it, by validation."""
    curve: bool = True
    """If there is time, also train on 25 and 50 % of the training images (of the first fold), for a learning curve."""
    classes: tuple[str, ...] = ()
    """Use only these classes."""
    label: str | None = None
    """For .npz files: the array that holds the class of each image, if it is not the usual one."""
    channels: Literal[1, 3] | None = None
    """1 converts to grey, 3 to RGB. Default: RGB if any image is in colour."""
    cells: Cells = "whole"
    """For stained cells in colour: `cut` crops each cell at one scale; `matched` also normalises its stain."""
    range: tuple[float, float] | None = None
    """The values that become 0 and 255 in files of more than 8 bits a channel, e.g. 0 4095. Default:
    the percentiles 0.1 and 99.9 of the values of up to 100 images."""
    flip: bool = True
    """Mirror training images at random, both ways; not for digits, or organs that have a left and a right."""
    mirror: bool = False
    """With --no-flip: mirror left-right only."""
    microscopes: bool = False
    """Also change training images like other microscopes, stains and cameras: for networks that must generalise."""
    split_file: Path | None = None
    """Your own split; `capsella data split` writes such a file. Default: 15 % of the training images choose learning
    rate, epoch and the best network of each kind; without folds, 20 % of all images are held out for the test."""
    duplicates: Duplicates = "error"
    """The same image in two classes, or in two splits of your own, is an error, or with `keep` a warning. Copies stay
    in one split. `ignore` does not look for copies."""
    precision: Precision = "32-true"
    """Number format of the training: float32, or convolutions and dense layers in bfloat16. `auto`: bfloat16 if this
    machine is clearly faster with it."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the training; latency is measured on the processor."""

    def __post_init__(self) -> None:
        check_argument(self.rates in RATES, "be 1 or 3", rates=self.rates)
        check_minimum(1, seeds=self.seeds, folds=self.folds)
        check_argument(bool(self.networks), "name at least one", networks=self.networks)
        for name in ("minutes", "latency_limit"):
            number = getattr(self, name)
            check_argument(0 < number < math.inf, "be above 0 and finite", **{name: number})
        if self.split_file is not None and self.folds not in (None, 1):
            raise ArgumentError("folds", "be 1 with a split file", self.folds)
        _ = self.augment  # which checks its fields

    @property
    def output(self) -> Path:
        """Folder of the runs and the report."""
        return self.out or Path("runs", f"compare-{Path(self.images).resolve().stem}")

    @property
    def data(self) -> DataOptions:
        """The images at their own size, before they are split."""
        data = data_from(self.images)
        check_argument(self.label is None or isinstance(data, NpzData), "come with an .npz file", label=self.label)
        own: dict[str, Any] = {"range": self.range, "duplicates": self.duplicates}
        return data.replace(
            channels=self.channels,
            split_file=self.split_file,
            group=self.group,
            skip_broken=self.skip_broken,
            **(own if isinstance(data, FileData) else {}),
            **({} if self.fit is None else {"fit": self.fit}),
            **({} if self.label is None else {"label": self.label}),
        )

    @property
    def augment(self) -> AugmentOptions:
        """The augmentation of training images of 64 pixels, the same for every network."""
        changes = AugmentOptions(shift=4, padding_mode="border", flip=self.flip, mirror=self.mirror)
        return changes.for_domain_shift() if self.microscopes else changes

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that decide the numbers, JSON-ready."""
        values = dataclasses.asdict(self)
        for name in ("out", "dry_run", "verbose"):
            del values[name]
        values["split_file"] = None if self.split_file is None else str(self.split_file)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
