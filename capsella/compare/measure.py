"""What the trained networks are worth on the test images, which are looked at here for the first time."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from capsella.bench import Latency, network_latencies
from capsella.compare.trained import Trained
from capsella.data import ImageSet, Splits, evenly, read_split_file
from capsella.errors import CapsellaError, pluralize
from capsella.evaluation import (
    Changed,
    Evaluation,
    Interval,
    Robustness,
    RobustnessPoint,
    accuracy_interval,
    evaluate,
    measure_robustness,
)
from capsella.files import write_csv
from capsella.models import ImageClassifier
from capsella.training import RunFolder, load_run

MOST_CHANGED = 300
"""Test images that are changed for the robustness, evenly spread: every run classifies each some 18 times."""


@dataclass(frozen=True, eq=False)
class Measured:
    """A network of the comparison, tested: an evaluation by seed, and those of the runs on a share of the images.

    changed: what it makes of changed test images; None where the network is not the best of its kind.
    curves: the same of the seed that validates best, by change and strength.
    """

    trained: Trained
    evaluations: dict[int, Evaluation]
    by_share: dict[float, dict[int, Evaluation]]
    latency: Latency
    changed: Changed | None = None
    curves: tuple[RobustnessPoint, ...] = ()

    @property
    def name(self) -> str:
        """The registered network."""
        return self.trained.candidate.network

    @property
    def correct(self) -> Bool[np.ndarray, "seeds images"]:
        """Which test images each seed's network has right."""
        return correct_of(self.evaluations)

    @property
    def accuracy(self) -> Interval:
        """Mean over seeds, with its 95 % interval over seeds and test images."""
        return accuracy_interval(self.correct, self.best_evaluation.groups)

    @property
    def balanced_accuracy(self) -> float:
        """Mean over seeds of the mean recall of all classes, in per cent."""
        return float(np.mean([one.balanced_accuracy for one in self.evaluations.values()]))

    @property
    def best_evaluation(self) -> Evaluation:
        """Of the seed that validates best."""
        return self.evaluations[self.trained.best_seed]

    def model(self) -> ImageClassifier:
        """The network of the seed that validates best."""
        return _best_model(self.trained)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; errors and accuracies in per cent, intervals as shares."""
        one, trained = self.trained.candidate, self.trained
        return {
            "network": one.network,
            "family": one.family,
            "parameters": one.parameters,
            "decoder_parameters": one.decoder_parameters,
            "recipe": one.recipe_name,
            "learning_rate": trained.search.best,
            "validation_error_by_learning_rate": {
                f"{rate:g}": run.error if np.isfinite(run.error) else "diverged"
                for rate, run in trained.search.tried.items()
            },
            "validation_error_percent": trained.validation_error,
            "accuracy": self.accuracy.to_dict(),
            "balanced_accuracy_percent": self.balanced_accuracy,
            "latency_ms": asdict(self.latency),
            "best_seed": trained.best_seed,
            "seeds": {
                seed: {
                    "run": trained.by_seed[seed].folder.name,
                    "best_epoch": trained.by_seed[seed].epoch,
                    "training_seconds": trained.by_seed[seed].seconds,
                    "validation_error_percent": trained.by_seed[seed].error,
                    "test": evaluation.to_dict(),
                }
                for seed, evaluation in self.evaluations.items()
            },
            "shares": {
                f"{share:g}": {
                    "accuracy": accuracy_interval(correct_of(evaluations), self.best_evaluation.groups).to_dict(),
                    "test_error_percent": {seed: one.error for seed, one in evaluations.items()},
                }
                for share, evaluations in self.by_share.items()
                if evaluations  # none where every training on it diverged
            },
            "accuracy_on_changed_images_percent": self._changed_accuracy(),
        }

    def _changed_accuracy(self) -> dict[str, dict[int, float]]:
        """Mean over the strengths of each change, by seed."""
        by_change = {} if self.changed is None else self.changed.by_change
        return {
            change: {seed: 100 * float(row.mean()) for seed, row in zip(self.evaluations, hits, strict=True)}
            for change, hits in by_change.items()
        }


def correct_of(evaluations: dict[int, Evaluation]) -> Bool[np.ndarray, "seeds images"]:
    """A row a seed, a column an image: whether it is right."""
    return np.stack([one.correct.numpy() for one in evaluations.values()])


def check_unseen(networks: Sequence[Trained], splits: Splits) -> None:
    """No network learned from an image that it is to be tested on, as after a comparison with another split.

    Raises:
        CapsellaError: one did; names its run.
    """
    for one in networks:
        for run in one.by_seed.values():
            RunFolder(run.folder).check_images(splits)
        for run in (run for runs in one.by_share.values() for run in runs.values()):
            _check_share(RunFolder(run.folder), splits)


def _check_share(files: RunFolder, splits: Splits) -> None:
    """The same of a run that was trained on a share of the images."""
    if not files.split.exists() or not isinstance(splits.test, ImageSet) or splits.test.files is None:
        return
    rows = read_split_file(files.split).rows
    learned = [file for file in splits.test.files if file in rows and rows[file].split in ("train", "validation")]
    if learned:
        raise CapsellaError(
            f"{files.path} learned from {pluralize(len(learned), 'image')} of the test, as {learned[0]}; compare in "
            "another folder"
        )


def measure(networks: Sequence[Trained], champions: Sequence[Trained], images: ImageSet) -> list[Measured]:
    """Test every network that trained to the end, with every seed; the champions on changed images too.

    Raises:
        CapsellaError: a run is gone or damaged.
    """
    whole = [one for one in networks if one.validation_error < float("inf")]
    times = network_latencies({one.candidate.network: _best_model(one) for one in whole}, images)
    return [
        Measured(
            one,
            {seed: _evaluate(run.folder, images) for seed, run in one.by_seed.items()},
            {
                share: {seed: _evaluate(run.folder, images) for seed, run in runs.items() if np.isfinite(run.error)}
                for share, runs in one.by_share.items()
            },
            times[one.candidate.network],
            *(_changed(one, images) if one in champions else ()),
        )
        for one in whole
    ]


def robustness_of_best(champions: Sequence[Measured], name: str) -> Robustness:
    """The curves of the runs that would be shipped."""
    points = (replace(point, network=one.name) for one in champions for point in one.curves)
    return Robustness(name, 0, tuple(points))


def write_predictions(path: Path, measured: Sequence[Measured], images: ImageSet) -> None:
    """A CSV row a test image: its file, its class, and what every network said with every seed."""
    said = {
        f"{one.name} seed {seed}": [images.classes[k] for k in evaluation.predictions.tolist()]
        for one in measured
        for seed, evaluation in one.evaluations.items()
    }
    files = images.files or tuple(map(str, range(len(images))))
    truth = [images.classes[k] for k in images.labels.tolist()]
    write_csv(path, ("file", "class", *said), zip(files, truth, *said.values(), strict=True))


def _best_model(one: Trained) -> ImageClassifier:
    """The network of the seed that validates best."""
    return load_run(one.by_seed[one.best_seed].folder).model


def _evaluate(folder: Path, images: ImageSet) -> Evaluation:
    return evaluate(load_run(folder).model, images, batch_size=32)


def _changed(one: Trained, images: ImageSet) -> tuple[Changed, tuple[RobustnessPoint, ...]]:
    """What every seed makes of changed images, and the points of the seed that validates best."""
    models = {str(seed): load_run(run.folder).model for seed, run in one.by_seed.items()}
    few = images.subset(evenly(len(images), MOST_CHANGED))
    result = measure_robustness(models, few, batch_size=32)
    curves = {change: [result.curve(seed, change) for seed in models] for change in result.perturbations}
    changed = Changed(
        np.stack([points[0].hits for points in next(iter(curves.values()))]),
        {
            change: np.stack([np.mean([point.hits for point in points if point.strength > 0], 0) for points in seeds])
            for change, seeds in curves.items()
        },
        None if few.group is None else few.group.numpy(),
    )
    return changed, tuple(point for point in result.points if point.network == str(one.best_seed))
