"""`ComparisonOptions`: which networks on which images, how long; the fields are the flags of `capsella compare`."""

import dataclasses
import math
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from capsella.data import FolderData
from capsella.data.options import Duplicates
from capsella.errors import ArgumentError, check_argument, check_minimum
from capsella.image_options import Cells
from capsella.training.config import AugmentOptions, Precision

SIZES = (0.25, 0.5, 1.0)
"""Shares of the training images for the data-size curve, where every class has enough of them."""
RATES = {1: (1.0,), 3: (1 / 3, 1.0, 3.0)}
"""Learning rates tried for each network, as factors of its recipe's."""


@dataclass(frozen=True, kw_only=True)
class CommonComparisonOptions:
    """The options of a comparison that --help shows."""

    models: tuple[str, ...] = ()
    """Networks, shell patterns of them, or groups: capsules-small, cnn-small, capsules-thesis, cnn-thesis, thesis.
    Default: three capsule networks and two CNNs that suit the size of the images."""
    backbone: str | None = None
    """Also compare class capsules and a linear layer on this frozen backbone: a run, a folder, or a name on the
    Hugging Face hub (OWNER/NAME)."""
    seeds: int | None = None
    """Seeds per network. Default: 3; with --folds 1. Rerun with more to train only the new ones."""
    epochs: int = 30
    """Passes over the training images, for every network."""
    minutes: float | None = None
    """Fewer epochs, for every network, if the training of all is estimated to take longer than this."""
    size: int | None = None
    """Crop the centre to a square and resize to this many pixels a side. Default: keep the size."""
    folds: int | None = None
    """For few images: cross-validation with this many folds in place of --test. Every image is tested once."""
    group: str | None = None
    """A regular expression whose one capture group, found in the path, names the patient; no patient is in two
    splits."""
    skip_broken: bool = False
    """Leave out images that cannot be read, and list them, instead of stopping at the first."""
    latency_limit: float = 50.0
    """Milliseconds that one image may take on this machine's processor."""
    out: Path | None = None
    """Folder of the runs and the report. Default: runs/compare-FOLDER, with -foldsN for N folds."""
    dry_run: bool = False
    """Print what would be trained and how long that takes, and stop."""


@dataclass(frozen=True)
class ComparisonOptions(CommonComparisonOptions):
    """Which networks are compared on which images, and how long they train.

    Raises:
        ValueError: a field is outside its range.
    """

    folder: Annotated[Path, tyro.conf.Suppress] = Path()
    """The folder of images: one subfolder per class."""
    _: KW_ONLY
    rates: Literal[1, 3] = 3
    """Learning rates per network: its recipe's, and a third and three times of it; validation chooses."""
    channels: Literal[1, 3] | None = None
    """1 converts to grey, 3 to RGB. Default: keep the channels, which must then be the same in all images."""
    cells: Cells = "whole"
    """For stained cells in colour, with --size: `cut` crops each cell at one scale; `matched` also normalises its
    stain."""
    range: tuple[float, float] | None = None
    """The values that become 0 and 255 in files of more than 8 bits a channel, e.g. 0 4095. Default: what the training
    images state, or else the percentiles 0.1 and 99.9 of their values."""
    sizes: tuple[float, ...] | None = None
    """Fractions of the training images for the data-size curve of the best capsule network and the best CNN. Default:
    0.25, 0.5 and 1, except those that would leave a class without an image."""
    batch_size: int | None = None
    """Images per step. Default: 32, or 8 from 64 pixels a side on."""
    flip: bool = True
    """Mirror training images at random, both ways; not for digits, or organs that have a left and a right."""
    mirror: bool = False
    """With --no-flip: mirror left-right only."""
    shift: int = 2
    """Shift training images at random by up to this many pixels; the border's pixels are repeated."""
    microscopes: bool = False
    """Also change training images like other microscopes, stains and cameras: for networks that must generalise."""
    validation: float = 0.15
    """Fraction of the training images that choose learning rate, epoch and the best network of each kind."""
    test: float = 0.2
    """Fraction of all images held out for the test; they are used once, after everything is chosen."""
    fold: int | None = None
    """With --folds: compare for this fold only, counted from 0."""
    split_file: Path | None = None
    """Your own split, in place of the fractions; `capsella data split` writes such a file."""
    duplicates: Duplicates = "error"
    """The same image in two classes, or in two splits of your own, is an error, or with `keep` a warning. Copies stay
    in one split. `ignore` does not look for copies."""
    precision: Precision = "32-true"
    """Number format of the training: float32, or convolutions and dense layers in bfloat16. `auto`: bfloat16 if this
    machine is clearly faster with it; the comparison keeps that choice."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device and threads of the training; latency is measured on the processor."""

    def __post_init__(self) -> None:
        check_argument(self.rates in RATES, "be 1 or 3", rates=self.rates)
        check_minimum(1, epochs=self.epochs, batch_size=self.batch_size, seeds=self.seeds)
        sizes = self.asked_sizes
        if not sizes or max(sizes) != 1 or min(sizes) <= 0 or len(set(sizes)) < len(sizes):
            raise ArgumentError("sizes", "be different shares above 0, the largest 1", sizes)
        if self.folds is not None and sizes != (1,):
            raise ArgumentError("sizes", "be 1 with folds, for which there is no data-size curve", sizes)
        for name in ("minutes", "latency_limit"):
            number = getattr(self, name)
            check_argument(number is None or 0 < number < math.inf, "be above 0 and finite", **{name: number})
        _ = self.augment, self.data  # which check the other fields

    @property
    def output(self) -> Path:
        """Folder of the runs and the report."""
        folds = "" if self.folds is None else f"-folds{self.folds}"
        name = f"compare-{self.folder.resolve().name}{folds}"
        return self.out or Path("runs", name, "" if self.fold is None else f"fold{self.fold}")

    @property
    def data(self) -> FolderData:
        """The images, before they are split."""
        return FolderData(
            self.folder,
            size=self.size,
            channels=self.channels,
            cells=self.cells,
            range=self.range,
            validation=self.validation,
            test=self.test,
            folds=self.folds,
            fold=self.fold,
            split_file=self.split_file,
            group=self.group,
            skip_broken=self.skip_broken,
            duplicates=self.duplicates,
        )

    @property
    def augment(self) -> AugmentOptions:
        """Changes of training images, the same for every network."""
        changes = AugmentOptions(shift=self.shift, padding_mode="border", flip=self.flip, mirror=self.mirror)
        return changes.for_domain_shift() if self.microscopes else changes

    @property
    def asked_seeds(self) -> tuple[int, ...]:
        """The seeds, or the default ones."""
        return tuple(range(self.seeds or (3 if self.folds is None else 1)))

    @property
    def asked_sizes(self) -> tuple[float, ...]:
        """The shares of the training images, or the default ones."""
        return self.sizes or (SIZES if self.folds is None else (1.0,))

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares below 1, rising."""
        return tuple(sorted(share for share in self.asked_sizes if share < 1))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that decide the numbers, JSON-ready."""
        values = dataclasses.asdict(self)
        for name in ("out", "dry_run"):
            del values[name]
        values["seeds"] = self.asked_seeds
        for name in ("folder", "split_file"):
            values[name] = None if values[name] is None else str(values[name])
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
