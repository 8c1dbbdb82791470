"""One candidate's trainings: to the end of a rung, from where the rung before ended."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from rich.console import Console

from capsella.data import DataOptions, LabelledImages, Splits, load_data
from capsella.errors import BusyError
from capsella.files import alone_in
from capsella.search.schedule import Job
from capsella.training import Machine, Recipe, RunFolder, resume, train
from capsella.training.checkpoint import EpochRow, read_progress
from capsella.training.validation import kept_by

LOCKED_SECONDS = 2.0
"""Between looks at a folder where another process still trains."""


class SealedError(Exception):
    """Something looked at the test images while a search went on."""


class Sealed:
    """Stands where the test images were: whatever is asked of it raises, but for the names of their files.

    files: of the images, for split.csv.
    """

    def __init__(self, files: tuple[str, ...] | None) -> None:
        object.__setattr__(self, "files", files)

    def __getattribute__(self, name: str) -> tuple[str, ...] | None:
        if name == "files":
            return cast(tuple[str, ...] | None, object.__getattribute__(self, name))
        raise SealedError(f"a search must not look at the test images, but asked for {name}")

    def __len__(self) -> int:
        raise SealedError("a search must not look at the test images, but counted them")


def sealed(splits: Splits) -> Splits:
    """The same images to train and to validate on, without those of the test."""
    made = object.__new__(Splits)  # whose check would look at all three
    for name, value in vars(splits).items():
        object.__setattr__(made, name, Sealed(value.files) if name == "test" else value)
    return made


@dataclass
class Images:
    """The images of a search, read once. read: from their options to them."""

    read: Callable[[DataOptions], Splits] = load_data
    _read: dict[DataOptions, Splits] = field(default_factory=dict)

    def of(self, options: DataOptions) -> Splits:
        """Without the test images."""
        if options not in self._read:
            self._read[options] = sealed(self.read(options))
        return self._read[options]

    def train(self, recipe: Recipe) -> LabelledImages:
        """The images to train on."""
        return self.of(recipe.data).train


@dataclass(frozen=True)
class Trained:
    """What a job came to. error: that epochs are kept by, in per cent. epochs, seconds: trained for this job."""

    error: float
    loss: float
    epochs: int
    seconds: float


def candidate_folder(folder: Path, job: Job) -> Path:
    """Of the run of a candidate with one seed."""
    return folder / "candidates" / f"{job.candidate:04}-seed{job.seed}"


def train_to(recipe: Recipe, folder: Path, epochs: int, images: Images, machine: Machine, name: str) -> Trained:
    """Train a candidate up to an epoch: from its checkpoint where it has one, or else from the start.

    Raises:
        TrainingDivergedError: NaN or infinity. CapsellaError: as `train` raises.
    """
    files, splits = RunFolder(folder), images.of(recipe.data)
    before, began = None, 0.0
    while before is None:
        # A worker that was taken for dead, and is not, is near the end of its rung.
        with alone_in(folder, wait=math.inf, every=LOCKED_SECONDS):
            pass
        began = time.monotonic()
        with contextlib.suppress(BusyError):  # another process looked just now whether anything may go
            before = _go_on(recipe, files, epochs, splits, machine, name)
    progress = read_progress(files.checkpoint)
    best: EpochRow = progress.best or {}
    error = best[kept_by(files.read_config()[1])]
    return Trained(error, best["validation_loss"], progress.epoch - before, time.monotonic() - began)


def _go_on(recipe: Recipe, files: RunFolder, epochs: int, splits: Splits, machine: Machine, name: str) -> int:
    """Train up to an epoch; returns that of the checkpoint it went on from.

    Raises:
        CapsellaError: the folder holds a run of another recipe, as of another study.
    """
    files.check_recipe(recipe)
    quiet = Console(quiet=True)
    with alone_in(files.path):
        has_begun = files.checkpoint.exists()
        if not has_begun:
            files.forget_start()
    if has_begun:
        before = read_progress(files.checkpoint).epoch
        resume(files.path, machine=machine, console=quiet, until=epochs, splits=splits)
        return before
    train(recipe, files.path, name=name, machine=machine, console=quiet, until=epochs, splits=splits)
    return 0


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with the seed of that number, counted from its own."""
    return replace(recipe, seed=recipe.seed + seed)
