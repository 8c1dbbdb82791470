"""The folder of a run: the files that a training writes, how to read them, and the images of the run."""

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from capsella.data import DataOptions, FolderData, Splits, list_folder, load_data, load_source, read_split_file
from capsella.data.splits import UNUSED, TableRow
from capsella.environment import environment
from capsella.errors import CapsellaError, check_argument, errors_of, pluralize, warn_once
from capsella.files import alone_in, read_json, write_json
from capsella.models import ImageClassifier
from capsella.training.config import ComputeOptions
from capsella.training.devices import is_first_of_training
from capsella.training.metrics import read_metrics
from capsella.training.recipe import Recipe, flatten
from capsella.training.resolve import with_resolved_from

MOST_NAMED = 4  # changed settings in an error


@dataclass(frozen=True)
class Run:
    """A trained run.

    model: the network with the weights of the epoch that the recipe keeps, in evaluation mode. adapted: the contents of
    adapted.json if the run was adapted to another domain. splits: the images, if this process trained the run.
    """

    folder: Path
    name: str
    recipe: Recipe
    model: ImageClassifier
    environment: dict[str, Any]
    adapted: dict[str, Any] | None = None
    splits: Splits | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class RunFolder:
    """The files of a run, by name.

    config.json: name, recipe (with "auto" resolved), compute options, environment, digests of the images.
    split.csv: the split of each file of a folder. metrics.csv: a row per epoch. events/: TensorBoard's.
    last.ckpt: what a resumed training starts from. model.json, model.safetensors, calibration.json,
    ood_detector.safetensors: the network and what was fitted to it. summary.json: the kept epoch, seconds, memory; its
    presence means that training is complete. test.json: the evaluation on the test images. result.json: all of it, for
    results/; its presence means that the run is tested. adapted.json: how the weights of another run were adapted; such
    a run has no metrics.csv and no summary.json. diverged.json: why a training has no result. final.json: a
    comparison trained the network on all images, so it is not tested. .lock: the process that
    trains now. Later measurements have files of their own, which their modules read and write.
    """

    path: Path

    @property
    def metrics(self) -> Path:
        """metrics.csv."""
        return self.path / "metrics.csv"

    @property
    def events(self) -> Path:
        """The folder of TensorBoard's events."""
        return self.path / "events"

    @property
    def checkpoint(self) -> Path:
        """last.ckpt."""
        return self.path / "last.ckpt"

    @property
    def split(self) -> Path:
        """split.csv."""
        return self.path / "split.csv"

    @property
    def config(self) -> Path:
        """config.json."""
        return self.path / "config.json"

    @property
    def is_trained(self) -> bool:
        """True if training is complete."""
        return (self.path / "summary.json").exists()

    @property
    def is_tested(self) -> bool:
        """True if the run was tested: result.json exists."""
        return (self.path / "result.json").exists()

    @property
    def has_diverged(self) -> bool:
        """True if the training diverged and was given up."""
        return (self.path / "diverged.json").exists()

    @property
    def is_final(self) -> bool:
        """True for the network that a comparison trained on all images: final.json exists."""
        return (self.path / "final.json").exists()

    def check_testable(self) -> None:
        """Check that the run has test images.

        Raises:
            CapsellaError: it is the final network of a comparison.
        """
        if self.is_final:
            raise CapsellaError(f"{self.path} was trained on all images, so none is left to test it on")

    def lock(self, compute: ComputeOptions) -> AbstractContextManager[None]:
        """Lock the folder against other trainings; in a distributed training, only the first process takes the lock.

        Raises:
            BusyError: another process holds it.
        """
        return alone_in(self.path) if is_first_of_training(compute) else nullcontext()

    def check_unused(self) -> None:
        """Check that the folder holds no run, so that none is overwritten.

        Raises:
            CapsellaError: it holds one.
        """
        if self.config.exists():
            raise CapsellaError(
                f"{self.path} already holds a run; choose another folder, or continue it with capsella train --resume"
            )

    def check_recipe(self, recipe: Recipe) -> None:
        """Check that the run in the folder, if any, has this recipe, with "auto" resolved as in that run.

        Raises:
            CapsellaError: it has another recipe; the error names the fields that differ.
        """
        if self.config.exists():
            begun = self.read_config()[1]
            now = with_resolved_from(recipe, begun)
            check_same_settings(self.path, flatten(begun.complete()), flatten(now.complete()))

    def write_config(
        self, name: str, recipe: Recipe, compute: ComputeOptions, images: Mapping[str, str] | None = None
    ) -> None:
        """Write config.json, with the folder that relative paths start from and the digests of the images."""
        values: dict[str, Any] = {"name": name, "recipe": recipe.to_dict(), "compute": asdict(compute)}
        values |= {"environment": environment(), "begun_in": str(Path.cwd())}
        (self.path / "diverged.json").unlink(missing_ok=True)  # left by an earlier training
        write_json(self.config, values | ({} if images is None else {"images": dict(images)}))

    def images(self) -> dict[str, str] | None:
        """Read the digests that the images had when training began; None if the run has none."""
        digests: dict[str, str] | None = self._config().get("images")
        return digests

    def check_images(self, splits: Splits) -> None:
        """Check that the images have not changed since training began, so that no training image is tested.

        Raises:
            CapsellaError: a file was added, removed, renamed or changed, or got another class.
        """
        if self.images() not in (None, splits.digests()):
            raise CapsellaError(
                f"{self.path}: {splits.name} has changed since this training began, so the run would be tested on "
                "images that it was trained on; put the files back as they were, or train again"
            )

    def discard_unstarted(self) -> None:
        """Delete config.json of a training that ended before its first checkpoint, so that it can start again."""
        self.config.unlink(missing_ok=True)

    def read_config(self) -> tuple[str, Recipe, dict[str, Any]]:
        """Read name, recipe and environment.

        A relative image path that does not exist is taken from the folder in which the training was started, if it
        exists there.

        Raises:
            CapsellaError: missing or damaged.
        """
        values = self._config()
        try:
            with errors_of(self.config):
                recipe = Recipe.from_dict(values["recipe"])
            return values["name"], _with_paths_from(Path(values["begun_in"]), recipe), values["environment"]
        except (KeyError, TypeError) as error:
            raise CapsellaError(f"{self.config} is damaged: {error!r}") from error

    def read_compute(self) -> ComputeOptions:
        """Read the compute options of the run.

        Raises:
            CapsellaError: damaged.
        """
        try:
            return ComputeOptions(**self._config()["compute"])
        except (ValueError, KeyError, TypeError) as error:
            raise CapsellaError(f"{self.config} is damaged: {error!r}") from error

    def _config(self) -> dict[str, Any]:
        if not self.config.exists():
            raise CapsellaError(f"{self.path} is not a run folder: it has no config.json")
        values: dict[str, Any] = read_json(self.config)
        return values

    def read_metrics(self) -> dict[str, Float[np.ndarray, " epochs"]]:
        """Read the columns of metrics.csv; an empty cell is NaN.

        Raises:
            CapsellaError: missing, empty or damaged.
        """
        return read_metrics(self.metrics)

    def read(self, name: str) -> dict[str, Any]:
        """Read one of the JSON files, e.g. "summary" or "result".

        Raises:
            CapsellaError: missing or damaged.
        """
        return dict(read_json(self.path / f"{name}.json"))

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        """Write one of the JSON files."""
        write_json(self.path / f"{name}.json", dict(values))


def check_same_settings(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that the contents of `folder` were made with these settings.

    Raises:
        CapsellaError: they were made with others; the error names those that differ.
    """
    if changed := [name for name in {**before, **now} if before.get(name) != now.get(name)]:
        shown = ", ".join(f"{name} {before.get(name)!r}, not {now.get(name)!r}" for name in changed[:MOST_NAMED])
        more = f" and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
        raise CapsellaError(f"{folder} has other settings: {shown}{more}; choose another folder")


def new_run_folder(runs: Path, name: str) -> Path:
    """Return `runs/name`, or `runs/name-2`, `-3`, … if that exists."""
    number = 1
    while (folder := runs / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return a unique name for each run: its folder's name or, if two have the same, the path below a common folder.

    Raises:
        ArgumentError: no folder, or one twice.

    >>> run_names([Path("/seven/run"), Path("/eight/run"), Path("/eight/cnn")])
    ['seven/run', 'eight/run', 'eight/cnn']
    """
    paths = [folder.resolve() for folder in folders]
    check_argument(0 < len(set(paths)) == len(paths), "be at least one folder, each named once", runs=list(folders))
    names = [path.name for path in paths]
    return (
        names if len(set(names)) == len(names) else [os.path.relpath(path, os.path.commonpath(paths)) for path in paths]
    )


def load_run(folder: str | Path) -> Run:
    """Load a run with the weights that were kept.

    Raises:
        CapsellaError: not a run folder, or one that is only half written (names what is missing).
    """
    folder = Path(folder)
    files = RunFolder(folder)
    name, recipe, trained_on = files.read_config()
    if files.checkpoint.exists() and not (folder / "model.json").exists():
        command = f"capsella train --resume {shlex.quote(str(folder))}"
        raise CapsellaError(f"{folder} has no weights yet: its first epoch is not complete; continue with {command}")
    model = ImageClassifier.from_pretrained(folder).eval()
    return Run(
        folder, name, recipe, model, trained_on, files.read("adapted") if (folder / "adapted.json").exists() else None
    )


def load_splits(run: Run) -> Splits:
    """Return the images of a run, split as in its training; load them unless `train` kept them in memory.

    Files that were added to a folder since the training began, and those that cannot be read any more, are left out
    with a warning.

    Raises:
        CapsellaError: the images are missing, or have changed since the training began.
    """
    return run.splits or load_run_splits(RunFolder(run.folder), run.recipe.data)


def load_run_splits(files: RunFolder, data: DataOptions, splits: Splits | None = None) -> Splits:
    """Return the images of a run folder (see `load_splits`); `splits` are images that are loaded already."""
    if splits is None:
        if isinstance(data, FolderData) and files.split.exists():
            splits = _load_as_listed(files, data)
        else:
            splits = load_data(replace(data, skip_broken=True))
        if splits.broken and not data.skip_broken:
            broken = "\n  ".join((f"left out {pluralize(len(splits.broken), 'broken image')}:", *splits.broken))
            warn_once(f"broken: {files.path}", broken)
    files.check_images(splits)
    return splits


def _load_as_listed(files: RunFolder, data: FolderData) -> Splits:
    """Load the images of a folder, split as in split.csv, and warn about new files."""
    table, present = read_split_file(files.split), list_folder(data.path).paths
    if gone := sorted(table.rows.keys() - table.unused - set(present)):
        raise CapsellaError(
            f"{files.path}: {data.path} has changed since this training began: {gone[0]} is gone; put it back, or "
            "train again"
        )
    if new := [file for file in present if file not in table.rows]:
        text = f"left out {pluralize(len(new), 'file')} added to {data.path} since this training began, e.g. {new[0]}"
        warn_once(f"new: {files.path}", text)
    table = table._replace(rows={**table.rows, **{file: TableRow(UNUSED) for file in new}})
    data = replace(data, duplicates="ignore", folds=None, fold=None, skip_broken=True)
    return load_source(data, table).split(data)


def _with_paths_from(begun_in: Path, recipe: Recipe) -> Recipe:
    """Return the recipe with paths that exist; those that already do stay as written, because recipes are compared."""
    data, backbone = recipe.data.with_paths_from(begun_in), recipe.model.options.get("backbone")
    recipe = recipe if data == recipe.data else replace(recipe, data=data)
    if isinstance(backbone, str) and "/" in backbone and not Path(backbone).exists() and (begun_in / backbone).exists():
        recipe = recipe.with_model(backbone=str(begun_in / backbone))
    return recipe
