"""A search: an Optuna study that any number of processes share.

Optuna draws the candidates, stops them early and keeps the trials. Each trial trains one candidate from rung to rung in
a folder of its own, so that a trial that is retried continues from its checkpoint.
"""

import contextlib
import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsella.data import Splits, load_data
from capsella.errors import CapsellaError, check_argument, check_installed
from capsella.experiments.runner import format_duration
from capsella.experiments.search.options import FACTOR, SearchOptions
from capsella.experiments.search.outcome import Outcome, outcome_of
from capsella.experiments.search.space import Space, default_space
from capsella.files import alone_in
from capsella.training import ComputeOptions, Recipe, RunFolder
from capsella.training.loop import time_steps
from capsella.training.progress import selection_metric
from capsella.training.recipe import flatten
from capsella.training.run import check_same_settings

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

ATTEMPTS = 3  # retries of a trial whose process died
HEARTBEAT, GRACE = 10, 60  # seconds between signs of life in a database, and without one until a process counts as dead


@dataclass(frozen=True)
class Search:
    """A search that this process takes part in.

    recipe: what candidates start from, and name: its name. rungs: the epochs at which candidates are judged. splits:
    training and validation images. seconds_per_epoch: estimate before the first trial.
    """

    folder: Path
    name: str
    recipe: Recipe
    space: Space
    options: SearchOptions
    rungs: tuple[int, ...]
    study: "optuna.Study"
    splits: Splits
    compute: ComputeOptions
    seconds_per_epoch: float

    @property
    def end(self) -> str:
        """The estimated duration with one process, and the time of day at which it ends."""
        seconds = self.options.expected_epochs(self.rungs) * self.seconds_per_epoch
        seconds = seconds if self.options.minutes is None else min(seconds, 60 * self.options.minutes)
        return f"about {format_duration(seconds)}, until {datetime.now() + timedelta(seconds=seconds):%H:%M}"

    def trials(self) -> "list[FrozenTrial]":
        """Return all trials of the study."""
        return self.study.get_trials(deepcopy=False)

    def mean_seconds_per_epoch(self) -> float:
        """Return the mean over all epochs trained so far, or the estimate before the first."""
        epochs = sum(trial.user_attrs.get("epochs", 0) for trial in self.trials())
        seconds = sum(trial.user_attrs.get("seconds", 0.0) for trial in self.trials())
        return seconds / epochs if epochs else self.seconds_per_epoch

    def run_folder(self, candidate: int, seed: int = 0) -> Path:
        """Return the folder of a candidate's run; seed 0 is the trial's."""
        name = f"candidate-{candidate:04}"
        if seed == 0:
            return self.folder / "candidates" / name
        return self.folder / "finalists" / f"{name}-seed{self.recipe.seed + seed}"

    def outcome(self) -> Outcome:
        """Return the results of the search so far."""
        return outcome_of(self.trials(), self._errors, self.options)

    def _errors(self, candidate: int) -> dict[int, float]:
        """Return the validation errors of a finalist's further seeds; infinite if a training diverged."""
        runs = {seed: RunFolder(self.run_folder(candidate, seed)) for seed in range(1, self.options.number_of_seeds)}
        return {
            seed: math.inf if run.has_diverged else error_at(run, self.recipe.epochs)
            for seed, run in runs.items()
            if run.has_diverged or run.is_trained
        }


def error_at(files: RunFolder, epochs: int) -> float:
    """Return the validation error, in per cent, of the epoch that a training of `epochs` epochs would keep."""
    recipe, table = files.read_config()[1], files.read_metrics()
    errors, losses = table[selection_metric(recipe)][:epochs], table["validation_loss"][:epochs]
    return float(errors[-1] if recipe.keep == "last" else errors[np.lexsort((losses, errors))[0]])


def open_search(
    recipe: Recipe,
    name: str,
    options: SearchOptions,
    space: Space | None = None,
    compute: ComputeOptions = ComputeOptions(),
    splits: Splits | None = None,
) -> Search:
    """Start a search around a recipe, or open the one in its folder.

    Args:
        recipe, name: the recipe to improve, and its name.
        options: options of the search.
        space: the fields that may change. Default: see `default_space`.
        compute: where candidates are trained.
        splits: the images, if they are loaded already.

    Raises:
        CapsellaError: Optuna is missing, the space does not fit the recipe, or the folder holds another search.
        ValueError: there is more than one device.
    """
    check_installed("a search", "search", "optuna")
    from optuna.distributions import distribution_to_json

    check_argument(compute.devices == 1, "be 1: run the search again for a second process", devices=compute.devices)
    if recipe.stop_at_error is not None and recipe.stop_on == "test":
        raise CapsellaError("a search never looks at test images: set --stop-on validation")
    folder = options.out or Path("runs", f"search-{name}")
    recipe.data.check_outside(folder)
    space = space or default_space(recipe)
    space = space.only(options.tune) if options.tune else space
    space.check(recipe)
    splits = (splits or load_data(recipe.data)).without_test()
    time, images = time_steps(recipe, compute, seconds=2.0, splits=splits), recipe.epoch_images or len(splits.train)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder / ".opening", wait=True):
        study = _open_study(folder, options)
        settings = {
            "recipe": recipe.complete().to_dict(),
            "space": {path: distribution_to_json(values) for path, values in space.fields.items()},
            "limits": options.limits,
            "seeds": options.seeds,
            "images": splits.digests(),
        }
        _check_settings(study, folder, settings)
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(space.point_of(recipe), user_attrs={"candidate": 0})
    # A warm-up is counted in steps, so it lasts the most epochs with the largest batch.
    steps = math.ceil(images / max(space.ends("batch_size") or (recipe.batch_size,)))
    rungs = options.rungs(recipe.epochs, recipe.optimizer.warmup_steps / steps)
    seconds = math.ceil(images / recipe.batch_size) * time.step + len(splits.validation) * time.image
    return Search(folder, name, recipe, space, options, rungs, study, splits, compute, seconds)


def _open_study(folder: Path, options: SearchOptions) -> "optuna.Study":
    import optuna
    from optuna.storages.journal import JournalFileBackend

    with quiet_optuna():
        retry = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=ATTEMPTS)
        try:
            if options.storage is None:
                journal = JournalFileBackend(str(folder / "study.log"))
                storage: optuna.storages.BaseStorage = optuna.storages.JournalStorage(journal)
            else:
                storage = optuna.storages.RDBStorage(
                    options.storage,
                    heartbeat_interval=HEARTBEAT,
                    grace_period=GRACE,
                    heartbeat_stale_trial_callback=retry,
                )
            study = optuna.create_study(
                storage=storage,
                study_name=folder.name,
                pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR),
                load_if_exists=True,
            )
        except Exception as error:  # each storage has errors of its own
            raise CapsellaError(f"the study in {options.storage or folder} cannot be opened: {error}") from error
        study.set_metric_names(["error"])
        return study


def _check_settings(study: "optuna.Study", folder: Path, settings: dict[str, Any]) -> None:
    """Store the settings of a new study, or check that they are those of an old one."""
    known, asked = study.user_attrs.get("settings"), json.loads(json.dumps(settings, default=str))
    if known is None:
        study.set_user_attr("settings", asked)
    else:
        check_same_settings(folder, flatten(known), flatten(asked))


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Hide Optuna's log messages, and its warnings about experimental features."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
