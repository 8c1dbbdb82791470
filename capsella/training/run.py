"""The folder of a run: what a training writes there, and how it is read."""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from capsella.data import Splits
from capsella.environment import environment
from capsella.errors import ArgumentError, CapsellaError, check_argument
from capsella.files import alone_in, read_json, write_json
from capsella.models import ImageClassifier
from capsella.training.devices import starts_training
from capsella.training.logs import read_metrics
from capsella.training.near_runs import no_run
from capsella.training.options import Machine
from capsella.training.recipe import Recipe
from capsella.training.settle import as_begun


@dataclass(frozen=True)
class Run:
    """A trained run.

    model: the network with the weights of the epoch that the recipe keeps, in evaluation mode.
    adapted: what adapted.json holds of a run that was adapted to another laboratory; None of any other.
    """

    folder: Path
    name: str
    recipe: Recipe
    model: ImageClassifier
    environment: dict[str, Any]
    adapted: dict[str, Any] | None = None


@dataclass(frozen=True)
class RunFolder:
    """What a run's folder holds, by name. Beside these: model.json, model.safetensors, calibration.json and
    ood_detector.safetensors.

    config.json: name, recipe (with what "auto" was), machine, environment, digests of the images. split.csv: which file
    of a folder was in which split. metrics.csv: a row an epoch. summary.json: the epoch that was kept, seconds, memory;
    it is there when training is complete. last.ckpt: what a resumed training starts from. test.json: the evaluation of
    the test images. result.json: all of it for results/; it is there when the run is tested. adapted.json: how the
    weights of another run were adapted to another laboratory; such a run has no metrics.csv and no summary.json.
    diverged.json: why a training among several learning rates has no result. events/: TensorBoard's. .lock: the process
    that trains now. What is measured of the finished run later has a file of its own, as benchmark.json or
    changed-images.json, which the module that measures it reads and writes.
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
    def is_trained(self) -> bool:
        """Whether training is complete."""
        return (self.path / "summary.json").exists()

    def share_done(self, epochs: int) -> float:
        """Of a training of so many epochs, by those that are complete and that it goes on from."""
        if self.is_trained:
            return 1.0
        has_begun = self.metrics.exists() and self.checkpoint.exists()
        return min(1.0, len(self.read_metrics()["epoch"]) / epochs) if has_begun else 0.0

    @property
    def is_trained_for_good(self) -> bool:
        """Whether training is complete, and its checkpoint deleted, as those of tables and repeated trainings are.

        Raises:
            CapsellaError: an adapted run, which has no training of its own.
        """
        if self.is_adapted:
            raise CapsellaError(f"{self.path} holds an adapted run: nothing is left to do; adapt its run anew instead")
        return self.is_trained and not self.checkpoint.exists()

    @property
    def is_tested(self) -> bool:
        """Whether the run has a result."""
        return (self.path / "result.json").exists()

    @property
    def is_adapted(self) -> bool:
        """Whether the weights are those of another run, adapted to another laboratory."""
        return (self.path / "adapted.json").exists()

    @property
    def has_diverged(self) -> bool:
        """Whether the training was given up."""
        return (self.path / "diverged.json").exists()

    def alone(self, machine: Machine) -> AbstractContextManager[None]:
        """No other process trains into this folder meanwhile; of those that train together the first asks for all.

        Raises:
            CapsellaError: one does.
        """
        return alone_in(self.path) if starts_training(machine) else nullcontext()

    def check_unused(self) -> None:
        """No run is lost.

        Raises:
            CapsellaError: a run is there already.
        """
        if (self.path / "config.json").exists():
            raise CapsellaError(
                f"{self.path} holds a run already; choose another folder, or continue a training with capsella train "
                "--resume"
            )

    def check_recipe(self, recipe: Recipe) -> None:
        """A run there is of this recipe, or of what this became when it began.

        Raises:
            CapsellaError: a run of another recipe is there.
        """
        if not (self.path / "config.json").exists():
            return
        begun = self.read_config()[1]
        if as_begun(recipe, begun).complete() != begun.complete():
            raise CapsellaError(
                f"{self.path} holds a run of another recipe; choose another folder, or move that one away"
            )

    def write_config(
        self, name: str, recipe: Recipe, machine: Machine, images: Mapping[str, str] | None = None
    ) -> None:
        """The complete recipe, what it runs on, from where its paths count, and the digests of its images."""
        values = {"name": name, "recipe": recipe.to_dict(), "machine": machine.to_dict(), "environment": environment()}
        values["begun_in"] = str(Path.cwd())
        (self.path / "diverged.json").unlink(missing_ok=True)  # of a training before this one
        write_json(self.path / "config.json", values | ({} if images is None else {"images": dict(images)}))

    def images(self) -> dict[str, str] | None:
        """The digests of its images when the training began; None of one from before they were kept, or in no file."""
        if not (self.path / "config.json").exists():
            return None
        found: dict[str, str] | None = json.loads((self.path / "config.json").read_text(encoding="utf-8")).get("images")
        return found

    def check_images(self, splits: Splits) -> None:
        """The images that the training saw are those of its beginning: else it would be tested on what it learned.

        Raises:
            CapsellaError: a file was added, removed or renamed, or another class given, since the training began.
        """
        before, now = self.images(), splits.digests()
        if before is None or before == now:
            return
        were, are = (", ".join(f"{of[name].split()[0]} {name}" for name in now) for of in (before, now))
        counts = f"{were} images then, {are} now" if were != are else f"{are} images, but others"
        raise CapsellaError(
            f"{self.path}: {splits.name} has changed since this training began ({counts}), so images that it learned "
            "from would be tested; put back the files as they were, or train anew"
        )

    def forget_start(self) -> None:
        """A training that ended before its first checkpoint left nothing to resume: it may begin anew."""
        (self.path / "config.json").unlink(missing_ok=True)

    def read_config(self) -> tuple[str, Recipe, dict[str, Any]]:
        """Name, recipe and environment.

        Paths of images that are not here are those from the folder in which the training began, where they are there.

        Raises:
            CapsellaError: missing or damaged.
        """
        path = self.path / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            recipe = _found(Recipe.from_dict(config["recipe"]), Path(config.get("begun_in", "")))
            return config["name"], recipe, config["environment"]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CapsellaError(no_run(self.path)) from error
        except CapsellaError as error:
            raise CapsellaError(f"{path}: {error}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CapsellaError(f"{path} is damaged: {error!r}") from error

    def read_machine(self) -> Machine:
        """Where the run was trained; of a run from before this was kept, the default.

        Raises:
            CapsellaError: damaged.
        """
        try:
            return Machine(**json.loads((self.path / "config.json").read_text(encoding="utf-8")).get("machine", {}))
        except (ValueError, TypeError) as error:
            raise CapsellaError(f"{self.path / 'config.json'} is damaged: {error!r}") from error

    def write_machine(self, machine: Machine) -> None:
        """Where the run goes on, in place of where it was trained until now."""
        path = self.path / "config.json"
        write_json(path, json.loads(path.read_text(encoding="utf-8")) | {"machine": machine.to_dict()})

    def read_metrics(self) -> dict[str, Float[np.ndarray, " epochs"]]:
        """The columns of metrics.csv; an empty cell is not-a-number.

        Raises:
            CapsellaError: missing, empty or damaged.
        """
        return read_metrics(self.metrics)

    def read(self, name: str) -> dict[str, Any]:
        """One of the JSON files, as "summary" or "result".

        Raises:
            CapsellaError: missing or damaged.
        """
        return dict(read_json(self.path / f"{name}.json"))

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        """One of the JSON files."""
        write_json(self.path / f"{name}.json", dict(values))


def new_run_folder(runs: Path, name: str) -> Path:
    """`runs/name`, or `runs/name-2`, `-3`, … where a run has that name already."""
    number = 1
    while (folder := runs / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder


def run_names(folders: Sequence[Path]) -> list[str]:
    """What several runs are called: each by the end of its path that no other has, mostly the folder's name.

    Raises:
        ValueError: no folder, or one twice.

    >>> run_names([Path("/seven/run"), Path("/eight/run"), Path("/eight/cnn")])
    ['seven/run', 'eight/run', 'cnn']
    """
    check_argument(bool(folders), "name the folder of at least one run", runs=list(folders))
    parts = [folder.resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise ArgumentError("runs", "each be named once", ", ".join(map(str, folders)))
    names = []
    for own in parts:
        alone = (k for k in range(1, len(own) + 1) if [other[-k:] for other in parts].count(own[-k:]) == 1)
        names.append(str(Path(*own[-next(alone) :])))
    return names


def load_run(folder: str | Path) -> Run:
    """A run with the weights that were kept.

    Raises:
        CapsellaError: not a run folder, or one that is only half written (says what is missing).
    """
    folder = Path(folder)
    name, recipe, measured_on = RunFolder(folder).read_config()
    if RunFolder(folder).checkpoint.exists() and not (folder / "model.json").exists():
        on = f"capsella train --resume {shlex.quote(str(folder))} goes on"
        raise CapsellaError(f"{folder}: this training has kept no weights yet; {on}")
    model = ImageClassifier.from_pretrained(folder).eval()
    adapted = RunFolder(folder).read("adapted") if RunFolder(folder).is_adapted else None
    return Run(folder, name, recipe, model, measured_on, adapted)


def _found(recipe: Recipe, begun_in: Path) -> Recipe:
    """With the paths of its images as they are from here."""

    def here(given: str) -> str:  # as it was written, if it has not moved: recipes are compared
        return str(begun_in / given) if not Path(given).exists() and (begun_in / given).exists() else given

    backbone, data = recipe.model.options.get("backbone"), recipe.data.with_paths_from(begun_in)
    recipe = recipe if data == recipe.data else replace(recipe, data=data)
    if isinstance(backbone, str) and "/" in backbone:
        return recipe.with_model(backbone=here(backbone))
    return recipe
