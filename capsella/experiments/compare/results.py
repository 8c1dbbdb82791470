"""The results of a comparison: out-of-fold predictions of every network, the decision, and shortcuts."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from rich.console import Console

from capsella.bench import network_latencies
from capsella.data import FolderData, single_images
from capsella.data.images import join
from capsella.data.splits import read_split_file
from capsella.environment import environment
from capsella.errors import CapsellaError
from capsella.evaluation import Interval
from capsella.evaluation.label_errors import LabelRanking, rank_labels, write_label_ranking
from capsella.evaluation.shortcuts import Shortcut, find_shortcuts
from capsella.experiments.compare.decision import Correct, Decision, NetworkResult, TestSetting, decide
from capsella.experiments.compare.options import RATES
from capsella.experiments.compare.plan import ALL, Key, Plan, begin
from capsella.experiments.fit import TestPredictions, read_test_predictions
from capsella.experiments.runner import Row, Runner, Stopwatch, ValidationResult
from capsella.files import alone_in, write_csv, write_json
from capsella.training import ComputeOptions, RunFolder, load_run


@dataclass(frozen=True, eq=False)
class Comparison:
    """A finished comparison.

    setting: the test images of all folds, in their order. files: their names. predicted, probabilities: by network.
    curves: by network, the interval of the measure by the number of training images, on the test images of the first
    fold. labels: labels ranked by how probably they are wrong. left_out: titles of networks with a training that
    diverged. final: the run of the recommended network on all images; None without folds. seconds: duration of this
    call.
    """

    plan: Plan
    decision: Decision
    files: tuple[str, ...]
    predicted: Mapping[str, Int[np.ndarray, "seeds images"]]
    probabilities: Mapping[str, Float[np.ndarray, "images classes"]]
    curves: Mapping[str, Mapping[int, Interval]]
    labels: LabelRanking
    shortcuts: Sequence[Shortcut]
    left_out: Sequence[str]
    final: Path | None
    seconds: float

    @property
    def setting(self) -> TestSetting:
        """The test images, and the criteria of the decision."""
        return self.decision.setting

    @property
    def capsules(self) -> Path | None:
        """The run folder whose capsules a page shows: of the recommended network, or else of the best with capsules."""
        best = [self.decision.recommended, *self.decision.finalists]
        return next((each.best_run for each in best if each is not None and each.family == "capsules"), None)

    def to_dict(self) -> dict[str, Any]:
        """Return every number of the report, options and environment, JSON-ready; differences are proportions."""
        plan, chosen = self.plan, self.decision.recommended
        runs = {"recommended": None if chosen is None else chosen.best_run, "final": self.final}
        runs["capsules"] = self.capsules
        return {
            **{name: None if run is None else run.relative_to(plan.folder).as_posix() for name, run in runs.items()},
            "decision": self.decision.to_dict(),
            "networks": [self._network(network) for network in self.decision.networks],
            "diverged": list(self.left_out),
            "images": len(self.setting.labels),
            "groups": None if self.setting.groups is None else self.setting.units,
            "classes": {name: int((self.setting.labels == k).sum()) for k, name in enumerate(self.setting.classes)},
            "folds": len(plan.folds),
            "seeds": list(range(plan.seed_count)),
            "detectable_difference_before": plan.detectable,
            "shortcuts": [shortcut.to_dict() for shortcut in self.shortcuts],
            "suspect_labels": int(self.labels.is_suspect.sum()),
            "announced_seconds": plan.total_seconds(),
            "seconds": self.seconds,
            "options": plan.options.to_dict(),
            "environment": environment(),
        }

    def _network(self, network: NetworkResult) -> dict[str, Any]:
        contender = next(each for each in self.plan.contenders if each.name == network.name)
        return {
            "network": network.name,
            "title": network.title,
            "family": network.family,
            "recipe": contender.recipe_name,
            "parameters": network.parameters,
            "epochs": self.plan.epochs(contender),
            "usual_epochs": contender.epochs_for(len(self.plan.splits.train)),
            "accuracy": self.setting.accuracy(network.correct).to_dict(),
            "balanced_accuracy": self.setting.balanced_accuracy(network.correct).to_dict(),
            "validation_error_percent": network.validation_error,
            "latency_ms_median": network.latency[0],
            "latency_ms_95_percentile": network.latency[1],
            "learning_curve": {
                images: interval.to_dict() for images, interval in self.curves.get(network.name, {}).items()
            },
        }


def compare(plan: Plan, console: Console) -> Comparison:
    """Train what is missing, test, and write comparison.json, predictions.csv and label_errors.csv.

    Raises:
        CapsellaError: fewer than two networks finished training, or another process uses the folder.
    """
    started = time.monotonic()
    with alone_in(plan.folder):
        begin(plan)
        shortcuts = check_shortcuts(plan)
        found = _train(plan, shortcuts, console, started)
        write_json(plan.folder / "comparison.json", found.to_dict())
        _write_predictions(plan.folder / "predictions.csv", found)
        labels, classes = found.setting.labels, tuple(found.setting.classes)
        write_label_ranking(plan.folder / "label_errors.csv", found.labels, labels, classes, found.files)
    return found


def check_shortcuts(plan: Plan) -> list[Shortcut]:
    """Return how well the class follows from size, file type, camera, brightness or border alone."""
    data = plan.options.data
    parts = [single_images(images, "comparisons") for images in plan.splits.named().values()]
    return find_shortcuts(join(parts), data.path if isinstance(data, FolderData) else None)


def _train(plan: Plan, shortcuts: Sequence[Shortcut], console: Console, started: float) -> Comparison:
    """Train and test every row, at its best learning rate, decide, and train the recommended network on all images."""
    rows, factors = plan.rows(), RATES[plan.options.rates]
    compute = ComputeOptions(accelerator=plan.options.accelerator)
    contenders = {contender.name: contender for contender in plan.contenders}
    estimates = {row.cost: plan.seconds(contenders[name], share) for (name, _, share), row in rows.items()}
    runner = Runner(plan.folder / "runs", console, compute, Stopwatch(estimates))
    if len(factors) > 1:
        tried = [key for key in rows if not contenders[key[0]].is_fitted]
        chosen = runner.choose_learning_rates([rows[key] for key in tried], 0, factors)
        rows |= zip(tried, chosen, strict=True)
    seeds = {key: plan.seeds(contenders[key[0]]) for key in rows}
    runner.stopwatch.plan(row.cost for key, row in rows.items() for _ in seeds[key])
    for data, numbers in dict.fromkeys((row.recipe.data, seeds[key]) for key, row in rows.items()):
        alike = [row for key, row in rows.items() if (row.recipe.data, seeds[key]) == (data, numbers)]
        runner.results(alike, numbers)  # which reads the images once for all seeds
    console.print("measuring the time per image", markup=False)
    found = _gather(plan, rows, shortcuts)
    if (best := found.decision.recommended) is not None and plan.is_crossvalidated:
        row, tested = plan.row(contenders[best.name], 0, ALL), rows[best.name, 0, 1.0]
        row = replace(row, recipe=replace(row.recipe, optimizer=tested.recipe.optimizer))
        files = RunFolder(row.folder(runner.folder, 0))
        files.write("final", {"reason": "trained on all images"})
        runner.validate([row], [0])
        found = replace(found, final=None if files.has_diverged else files.path)
    return replace(found, seconds=time.monotonic() - started)


def _gather(plan: Plan, rows: Mapping[Key, Row], shortcuts: Sequence[Shortcut]) -> Comparison:
    """Read the predictions of every run, and decide."""
    runs, folds = plan.folder / "runs", range(len(plan.folds))
    seeds = {contender.name: plan.seeds(contender) for contender in plan.contenders}
    folders = {key: [row.folder(runs, seed) for seed in seeds[key[0]]] for key, row in rows.items()}
    failed = {key for key, of_seeds in folders.items() if any(RunFolder(f).has_diverged for f in of_seeds)}
    diverged = {name for name, _, share in failed if share == 1}  # fewer images are for the learning curve only
    complete = [contender for contender in plan.contenders if contender.name not in diverged]
    if len(complete) < 2:
        gone = [str(f) for of_seeds in folders.values() for f in of_seeds if RunFolder(f).has_diverged]
        raise CapsellaError(
            f"trainings diverged, so there are no two networks to compare; remove {', '.join(gone)} to train them again"
        )
    tests = {
        key: [read_test_predictions(f) for f in of_seeds]
        for key, of_seeds in folders.items()
        if key not in failed and key[0] not in diverged
    }
    whole = {
        each.name: [
            TestPredictions.of_folds(parts)
            for parts in zip(*(tests[each.name, fold, 1.0] for fold in folds), strict=True)
        ]
        for each in complete
    }
    first = whole[complete[0].name][0]
    setting = TestSetting(
        first.labels,
        first.classes,
        plan.measure,
        plan.options.latency_limit,
        None if first.groups is None or len(np.unique(first.groups)) < 2 else first.groups,
        np.repeat(folds, [len(fold.splits.test) for fold in plan.folds]) if plan.is_crossvalidated else None,
    )
    predicted = {name: np.stack([part.predicted for part in parts]) for name, parts in whole.items()}
    probabilities = {name: np.mean([part.probabilities for part in parts], axis=0) for name, parts in whole.items()}
    validations = {
        each.name: [ValidationResult.of(RunFolder(f)) for fold in folds for f in folders[each.name, fold, 1.0]]
        for each in complete
    }
    best = {name: min(each, key=lambda run: run.rank).folder for name, each in validations.items()}
    times = network_latencies({name: load_run(run).model for name, run in best.items()})
    results = [
        NetworkResult(
            each.name,
            each.title,
            each.family,
            predicted[each.name] == first.labels,
            float(np.mean([run.error for run in validations[each.name]])),
            (times[each.name].p50, times[each.name].p95),
            each.parameters,
            best[each.name],
        )
        for each in complete
    ]
    decision = decide(results, setting)
    return Comparison(
        plan,
        decision,
        first.files,
        predicted,
        probabilities,
        {each.name: _curve(plan, each.name, tests, setting) for each in complete if plan.shares},
        rank_labels(first.labels, np.mean([probabilities[network.name] for network in decision.finalists], axis=0)),
        shortcuts,
        left_out=[contender.title for contender in plan.contenders if contender.name in diverged],
        final=None,
        seconds=0.0,
    )


def _curve(
    plan: Plan, name: str, tests: Mapping[Key, Sequence[TestPredictions]], setting: TestSetting
) -> dict[int, Interval]:
    """Return the measure by the number of training images, without diverged runs, on the first fold's test images."""
    curve, first = {}, np.arange(len(plan.splits.test))
    groups = None if setting.groups is None else setting.groups[first]
    here = replace(setting, labels=setting.labels[first], groups=groups, folds=None)
    for share in (share for share in (*plan.shares, 1.0) if (name, 0, share) in tests):
        correct: Correct = np.stack([part.predicted == part.labels for part in tests[name, 0, share]])
        table = read_split_file(plan.split_file(0, share)).rows.values()
        images = sum(row.split == "train" for row in table)
        curve[images] = here.value(correct)
    return curve


def _write_predictions(path: Path, found: Comparison) -> None:
    """Write a CSV row per test image: its file, class and fold, and the prediction of every network with every seed."""
    setting, classes = found.setting, np.array(found.setting.classes)
    columns = {
        f"{name}{f' seed {seed}' if len(rows) > 1 else ''}": classes[row]
        for name, rows in found.predicted.items()
        for seed, row in enumerate(rows)
    }
    folds = np.zeros(len(found.files), int) if setting.folds is None else setting.folds
    rows = zip(found.files, classes[setting.labels], folds, *columns.values(), strict=True)
    write_csv(path, ("file", "class", "fold", *columns), rows)
