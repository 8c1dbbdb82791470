"""The networks of a comparison, trained by its plan and then tested: here test images are used for the first time."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from capsella.bench import Latency, network_latencies
from capsella.compare.options import RATES
from capsella.compare.plan import Candidate, Plan, begin
from capsella.compare.verdict import Correct, Family, NetworkResult, TestSetting, Verdict, judge
from capsella.compare.words import Words, phrase
from capsella.data import ImageSet, Splits, evenly, read_split_file, single_images
from capsella.environment import environment
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
from capsella.experiments import LearningRateSearch, Row, Runner, Stopwatch, ValidationResult, was_still_learning
from capsella.files import write_csv
from capsella.models import ImageClassifier
from capsella.training import ComputeOptions, RunFolder, load_run

FAMILIES: tuple[Family, Family] = ("capsules", "CNN")
MAX_CHANGED = 300  # test images that are changed for robustness, evenly spread: each run classifies each some 18 times


@dataclass
class TrainedNetwork:
    """A network with its runs. by_share: the runs by seed on shares of the training images, at its best rate."""

    candidate: Candidate
    search: LearningRateSearch
    by_share: dict[float, dict[int, ValidationResult]] = field(default_factory=dict)

    @property
    def by_seed(self) -> dict[int, ValidationResult]:
        """The runs at the best learning rate."""
        return self.search.by_seed

    @property
    def validation_error(self) -> float:
        """The mean over seeds, in per cent; infinite if a training diverged."""
        return sum(run.error for run in self.by_seed.values()) / len(self.by_seed)

    @property
    def best_seed(self) -> int:
        """The seed with the lowest validation error, then loss."""
        return min(self.by_seed, key=lambda seed: self.by_seed[seed].rank)

    @property
    def best_run(self) -> Path:
        """The folder of that seed's run."""
        return self.by_seed[self.best_seed].folder

    @property
    def has_diverged(self) -> bool:
        """True if any seed diverged."""
        return not np.isfinite(self.validation_error)


def train_all(plan: Plan, console: Console) -> tuple[list[TrainedNetwork], dict[Family, TrainedNetwork]]:
    """Train what is missing of a plan.

    Returns:
        The networks, and the best of each family by validation: its mean error over seeds, then fewer parameters.

    Raises:
        CapsellaError: every network of a family diverged; and what `train` raises.
    """
    seeds, shares = plan.options.asked_seeds, plan.options.shares
    estimates = {candidate.network: plan.seconds(candidate.network) for candidate in plan.candidates}
    for family in FAMILIES:  # which networks the data-size curve is of is not known yet
        each = [estimates[candidate.network] for candidate in plan.candidates if candidate.family == family]
        estimates[f"share of {family}"] = sum(each) / len(each)
    compute = ComputeOptions(accelerator=plan.options.accelerator)
    runner = Runner(plan.folder / "runs", console, compute, Stopwatch(estimates))
    rows = [
        Row(
            slug=candidate.network,
            recipe_name=candidate.recipe_name,
            recipe=plan.recipe(candidate),
            cost=candidate.network,
        )
        for candidate in plan.candidates
    ]
    later = [f"share of {family}" for family in FAMILIES for _ in range(len(shares) * len(seeds))]
    searches = runner.search_learning_rates(rows, seeds, RATES[plan.options.rates], later)
    networks = [TrainedNetwork(candidate, search) for candidate, search in zip(plan.candidates, searches, strict=True)]
    best = {family: _best(networks, family) for family in FAMILIES}
    for share in shares:
        parts = [_on_share(plan, network, share) for network in best.values()]
        for network, runs in zip(best.values(), runner.validate(parts, seeds), strict=True):
            network.by_share[share] = runs
    return networks, best


def _on_share(plan: Plan, network: TrainedNetwork, share: float) -> Row:
    candidate, rate = network.candidate, network.search.best
    slug, recipe = f"{candidate.network}-rate{rate:g}-share{share:g}", plan.recipe(candidate, rate, share)
    return Row(slug=slug, recipe_name=candidate.recipe_name, recipe=recipe, cost=f"share of {candidate.family}")


def _best(networks: Sequence[TrainedNetwork], family: Family) -> TrainedNetwork:
    whole = [network for network in networks if network.candidate.family == family and not network.has_diverged]
    if not whole:
        raise CapsellaError(f"every network of the {family} diverged in training; there is nothing to compare")
    return min(whole, key=lambda network: (network.validation_error, network.candidate.parameters))


@dataclass(frozen=True, eq=False)
class TestedNetwork:
    """A tested network: an evaluation by seed, and those of the runs on shares of the images.

    changed: its results on changed test images; None unless it is the best of its family. curves: the same for the seed
    that validates best, by change and strength.
    """

    trained: TrainedNetwork
    evaluations: dict[int, Evaluation]
    by_share: dict[float, dict[int, Evaluation]]
    latency: Latency
    changed: Changed | None = None
    curves: tuple[RobustnessPoint, ...] = ()

    @property
    def name(self) -> str:
        """The registered network."""
        return self.trained.candidate.network

    @cached_property
    def correct(self) -> Correct:
        """Which test images each seed classifies correctly."""
        return correct_of(self.evaluations)

    @property
    def best_evaluation(self) -> Evaluation:
        """The evaluation of the seed that validates best."""
        return self.evaluations[self.trained.best_seed]

    @property
    def accuracy(self) -> Interval:
        """The mean over seeds, with its 95 % interval over seeds and test images."""
        return accuracy_interval(self.correct, self.best_evaluation.groups)

    @property
    def balanced_accuracy(self) -> float:
        """The mean over seeds of the mean recall of all classes, in per cent."""
        return float(np.mean([evaluation.balanced_accuracy for evaluation in self.evaluations.values()]))

    def model(self) -> ImageClassifier:
        """Load the network of the seed that validates best."""
        return load_run(self.trained.best_run).model

    def result(self) -> NetworkResult:
        """Return what a verdict needs."""
        share = max((share for share, runs in self.by_share.items() if runs), default=None)
        on_share = {} if share is None else self.by_share[share]
        return NetworkResult(
            self.name,
            self.correct,
            list(self.evaluations).index(self.trained.best_seed),
            (self.latency.p50, self.latency.p95),
            self.trained.candidate.parameters,
            self.changed,
            None if share is None else (share, correct_of(on_share)),
            tuple(row for row, seed in enumerate(self.evaluations) if seed in on_share),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; errors and accuracies in per cent, intervals as shares."""
        trained, candidate = self.trained, self.trained.candidate
        groups, by_change = self.best_evaluation.groups, {} if self.changed is None else self.changed.by_change
        return {
            "network": candidate.network,
            "family": candidate.family,
            "parameters": candidate.parameters,
            "decoder_parameters": candidate.decoder_parameters,
            "recipe": candidate.recipe_name,
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
                    "accuracy": accuracy_interval(correct_of(evaluations), groups).to_dict(),
                    "test_error_percent": {seed: evaluation.error for seed, evaluation in evaluations.items()},
                }
                for share, evaluations in self.by_share.items()
                if evaluations  # none if every training on it diverged
            },
            "accuracy_on_changed_images_percent": {
                change: {seed: 100 * float(row.mean()) for seed, row in zip(self.evaluations, rows, strict=True)}
                for change, rows in by_change.items()
            },
        }


def correct_of(evaluations: Mapping[int, Evaluation]) -> Correct:
    """Return which images are classified correctly, a row per seed."""
    return np.stack([evaluation.correct.numpy() for evaluation in evaluations.values()])


@dataclass(frozen=True, eq=False)
class Comparison:
    """A finished comparison.

    best: the best capsule network and the best CNN by validation. robustness: of their best seeds. tested_before: other
    seeds with which it was tested before.
    """

    plan: Plan
    networks: Sequence[TestedNetwork]
    best: tuple[TestedNetwork, TestedNetwork]
    verdict: Verdict
    words: Words
    robustness: Robustness
    environment: Mapping[str, object]
    tested_before: Sequence[Sequence[int]]

    @property
    def left_out(self) -> list[str]:
        """The networks of the plan that diverged with some seed."""
        return _left_out(self.plan, self.networks)

    @property
    def recommended_run(self) -> str | None:
        """The folder of the recommended network's best run, within that of the comparison."""
        for network in self.best:
            if network.name == self.verdict.recommended:
                return str(network.trained.best_run.relative_to(self.plan.folder))
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return every number of the report, and what it was measured with; differences as shares."""
        plan = self.plan
        return {
            "recommended_run": self.recommended_run,
            "options": plan.options.to_dict(),
            "epochs": plan.epochs,
            "batch_size": plan.batch_size,
            "tested_seeds": [*map(list, self.tested_before), list(plan.options.asked_seeds)],
            "images": {split: len(images) for split, images in plan.splits.named().items()},
            "classes": list(plan.splits.classes),
            "environment": dict(self.environment),
            "verdict": {
                **self.verdict.to_dict(),
                "headline": self.words.headline,
                "sentences": self.words.sentences,
            },
            "networks": [network.to_dict() for network in self.networks],
            "not_compared": self.left_out,
            "robustness_of_the_best_seeds": self.robustness.to_dict(),
        }


def train_and_test(plan: Plan, console: Console) -> Comparison:
    """Train what is missing, test, and judge.

    Raises:
        CapsellaError: every network of a family diverged; a run of another recipe is in the way.
    """
    begin(plan)
    trained, families = train_all(plan, console)
    console.print("testing: accuracy, changed images, latency", markup=False)
    images = single_images(plan.splits.test, "comparisons")
    _check_unseen(trained, plan.splits)
    networks = _test(trained, list(families.values()), images)
    capsules, cnn = (
        next(network for network in networks if network.trained is families[family]) for family in FAMILIES
    )
    unfinished = [network.name for network in networks if _was_still_learning(plan, network.trained)]
    setting = TestSetting(
        images.labels.numpy(),
        images.classes,
        plan.options.latency_limit,
        plan.epochs,
        unfinished,
        capsules.best_evaluation.groups,
        plan.undecidable,
        len(plan.undecidable) == len(plan.candidates),
    )
    verdict = judge(capsules.result(), cnn.result(), setting)
    points = tuple(replace(point, network=network.name) for network in (capsules, cnn) for point in network.curves)
    _write_predictions(plan.folder / "test_predictions.csv", networks, images)
    return Comparison(
        plan,
        networks,
        (capsules, cnn),
        verdict,
        phrase(verdict, _left_out(plan, networks)),
        Robustness(plan.splits.name, 0, points),
        environment(),
        tested_before(plan.folder, plan.options.asked_seeds),
    )


def tested_before(folder: Path, seeds: Sequence[int]) -> list[list[int]]:
    """Return the other lists of seeds with which the comparison in a folder was tested before.

    Raises:
        CapsellaError: its compare.json is damaged.
    """
    path = folder / "compare.json"
    if not path.exists():
        return []
    try:
        tested: list[list[int]] = json.loads(path.read_text(encoding="utf-8"))["tested_seeds"]
    except (ValueError, KeyError, TypeError) as error:
        raise CapsellaError(f"{path} is damaged: {error!r}; move it away") from error
    return [before for before in tested if before != list(seeds)]


def _left_out(plan: Plan, networks: Sequence[TestedNetwork]) -> list[str]:
    return sorted({candidate.network for candidate in plan.candidates} - {network.name for network in networks})


def _was_still_learning(plan: Plan, network: TrainedNetwork) -> bool:
    return was_still_learning(plan.recipe(network.candidate), [run.folder for run in network.by_seed.values()])


def _check_unseen(networks: Sequence[TrainedNetwork], splits: Splits) -> None:
    """Check that no network learned from an image that it is to be tested on, as after a comparison of another split.

    Raises:
        CapsellaError: one did; names its run.
    """
    for network in networks:
        for run in network.by_seed.values():
            RunFolder(run.folder).check_images(splits)
        for run in (run for runs in network.by_share.values() for run in runs.values()):
            _check_share(RunFolder(run.folder), splits)


def _check_share(files: RunFolder, splits: Splits) -> None:
    if not files.split.exists() or not isinstance(splits.test, ImageSet) or splits.test.files is None:
        return
    rows = read_split_file(files.split).rows
    learned = [file for file in splits.test.files if file in rows and rows[file].split in ("train", "validation")]
    if learned:
        raise CapsellaError(
            f"{files.path} learned from {pluralize(len(learned), 'test image')}, e.g. {learned[0]}; compare in another "
            "folder"
        )


def _test(networks: Sequence[TrainedNetwork], best: Sequence[TrainedNetwork], images: ImageSet) -> list[TestedNetwork]:
    """Test every network that trained to the end, with every seed; the best also on changed images."""
    whole = [network for network in networks if not network.has_diverged]
    times = network_latencies(
        {network.candidate.network: load_run(network.best_run).model for network in whole}, images
    )
    return [
        TestedNetwork(
            network,
            {seed: _evaluate(run.folder, images) for seed, run in network.by_seed.items()},
            {
                share: {seed: _evaluate(run.folder, images) for seed, run in runs.items() if np.isfinite(run.error)}
                for share, runs in network.by_share.items()
            },
            times[network.candidate.network],
            *(_test_changed(network, images) if network in best else ()),
        )
        for network in whole
    ]


def _evaluate(folder: Path, images: ImageSet) -> Evaluation:
    return evaluate(load_run(folder).model, images, batch_size=32)


def _test_changed(network: TrainedNetwork, images: ImageSet) -> tuple[Changed, tuple[RobustnessPoint, ...]]:
    """Return the results of every seed on changed images, and the curves of the seed that validates best."""
    models = {str(seed): load_run(run.folder).model for seed, run in network.by_seed.items()}
    few = images.subset(evenly(len(images), MAX_CHANGED))
    robustness = measure_robustness(models, few, batch_size=32)
    curves = {change: [robustness.curve(seed, change) for seed in models] for change in robustness.perturbations}
    changed = Changed(
        np.stack([points[0].hits for points in next(iter(curves.values()))]),
        {
            change: np.stack([np.mean([point.hits for point in points if point.strength > 0], 0) for points in seeds])
            for change, seeds in curves.items()
        },
        None if few.group is None else few.group.numpy(),
    )
    return changed, tuple(point for point in robustness.points if point.network == str(network.best_seed))


def _write_predictions(path: Path, networks: Sequence[TestedNetwork], images: ImageSet) -> None:
    """Write a CSV row per test image: its file, its class, and the prediction of every network with every seed."""
    predictions = {
        f"{network.name} seed {seed}": [images.classes[k] for k in evaluation.predictions.tolist()]
        for network in networks
        for seed, evaluation in network.evaluations.items()
    }
    files = images.files or tuple(map(str, range(len(images))))
    truth = [images.classes[k] for k in images.labels.tolist()]
    write_csv(path, ("file", "class", *predictions), zip(files, truth, *predictions.values(), strict=True))
