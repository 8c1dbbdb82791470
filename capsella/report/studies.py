"""Evaluations of trained runs that are written to files: on any images, under perturbations, under attack."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Group
from rich.text import Text

from capsella.data import ImageSet, LabelledImages, load_data, single_images
from capsella.data.holdout import limit_per_class
from capsella.errors import ArgumentError, CapsellaError, pluralize
from capsella.evaluation import (
    PERTURBATIONS,
    AttackOptions,
    attack_networks,
    evaluate,
    measure_robustness,
    measure_routing,
)
from capsella.evaluation.domain import domain_images
from capsella.evaluation.robustness import perturbation
from capsella.files import read_json, write_json
from capsella.models import ImageClassifier
from capsella.report.figures import accuracy_figure, risk_coverage_figure, write_png
from capsella.report.options import EvaluateOptions
from capsella.report.prose import attack_notes
from capsella.report.terminal import (
    attack_table,
    evaluation_table,
    ood_table,
    robustness_tables,
    routing_table,
    selective_table,
)
from capsella.training import Run, RunFolder, load_run_splits, load_splits
from capsella.training.registry import with_values
from capsella.training.trained import open_run, open_runs, shared_test_images
from capsella.uncertainty import evaluate_ood, evaluate_selective, load_ood_set


def study_run(folder: Path, options: EvaluateOptions, out: Path | None = None) -> Group:
    """Test a run, write the numbers as JSON, by default into the run's folder, and return a summary for a terminal.

    Raises:
        ArgumentError, CapsellaError: no run, unusable images, or a calibration or OOD check that is needed was not
            fitted.
    """
    run = open_run(folder, final=options.data is not None)
    if options.skip_broken:
        run = replace(run, recipe=replace(run.recipe, data=replace(run.recipe.data, skip_broken=True)))
    if run.adapted is not None and (options.selective or (options.ood and options.data is None)):
        domain = run.adapted["laboratory"]
        raise CapsellaError(f"{run.folder} was adapted to {domain}, where it has no validation images")
    _check_fitted(run, options)
    if out is None:
        out = run.folder / f"{options.name}.json"
        _check_same_domain(out, options)
    images, about, lines = _images(options, run)
    ood_sets = {}
    if options.ood:  # a missing folder is an error before the evaluation
        own = single_images(images, "out-of-distribution detection")
        ood_sets = {name: load_ood_set(name, run.model, own) for name in options.ood}
    evaluation = evaluate(run.model, images, options.batch_size, progress=True)
    values, shown = evaluation.to_dict() | about, [evaluation_table(evaluation)]
    if options.selective:  # thresholds are those of the run's own validation images
        validation = evaluate(run.model, load_splits(run).validation, options.batch_size)
        selective = evaluate_selective(run.model, validation, evaluation)
        values["selective"] = selective.to_dict()
        shown.append(selective_table(selective))
        picture = run.folder / "figures" / f"{options.name}-risk_coverage.png"
        write_png(risk_coverage_figure(selective), picture)
        shown.append(Text(f"drawn in {picture}"))
    if ood_sets:
        report = evaluate_ood(run.model, own, ood_sets, options.ood_false_positive_rate, options.batch_size)
        values["ood"] = report.to_dict()
        shown.append(ood_table(report))
    if options.routing:
        routing = measure_routing(run.model, images, run.recipe.loss, min(options.batch_size, 32), progress=True)
        values["routing"] = routing.to_dict()
        shown.append(routing_table(routing))
    write_json(out, values)
    return Group(*map(Text, lines), *shown, Text(f"written to {out}"))


def _check_fitted(run: Run, options: EvaluateOptions) -> None:
    """Raise `CapsellaError` if the run has no calibration or OOD detector and the options need it."""
    fits = {"selective": ("a calibration", run.model.calibration), "ood": ("an OOD detector", run.model.ood_detector)}
    for flag, (name, fit) in fits.items():
        if getattr(options, flag) and fit is None:
            raise CapsellaError(f"--{flag} needs a run with {name}, which training fits except for pairs")


def _check_same_domain(out: Path, options: EvaluateOptions) -> None:
    """Raise `CapsellaError` if the file holds the results of another domain, e.g. of a folder with the same name."""
    if options.data is None or not out.exists():
        return
    before = (read_json(out).get("laboratory") or {}).get("data", options.data)
    if Path(before).resolve() != Path(options.data).resolve():
        raise CapsellaError(f"{out} holds the results of {before}; choose another --out")


def _images(options: EvaluateOptions, run: Run) -> tuple[LabelledImages, dict[str, Any], list[str]]:
    """Return the images to test on, JSON values about their domain if it is another one, and lines about them."""
    data = run.recipe.data
    if options.data is not None and options.split is None and not data.is_paired:
        return domain_images(run, options.data, options.per_class, options.group, options.range)
    if options.data is not None:
        data = data.on(options.data)
    if options.test_pairs is not None:
        data = with_values(data, {"test_pairs": options.test_pairs})
    if options.per_class is not None:
        data = replace(data, test_per_class=None if options.per_class == "all" else options.per_class)
    is_own = options.data is None
    if is_own and options.split in (None, "test"):
        RunFolder(run.folder).check_testable()
    splits = load_run_splits(RunFolder(run.folder), data) if is_own else load_data(data)
    broken = pluralize(len(splits.broken), "broken image")
    lines = [f"note: left out {broken}: {', '.join(splits.broken)}"] if splits.broken else []
    images = splits.named()[options.split or "test"]
    for name in ("classes", "image_size", "channels"):
        ours, theirs = getattr(run.model, name), getattr(images, name)
        if ours != theirs:
            raise ArgumentError("data", f"have the {name} of the run, {ours}", theirs)
    return images, {}, lines


def study_robustness(
    folders: Sequence[Path],
    perturbations: Sequence[str],
    *,
    per_class: int | None = None,
    seed: int = 0,
    batch_size: int = 128,
    out: Path | None = None,
) -> Group:
    """Measure the accuracy of runs on changed test images, write it as JSON and a picture, and return its tables.

    Args:
        folders: runs with the same test images.
        perturbations: names of the changes, e.g. "rotation".
        per_class: number of test images per class; None uses all.
        seed: seed of the random changes.
        batch_size: images per batch.
        out: folder of the files. Default: robustness in the first run's folder.

    Raises:
        CapsellaError: runs with other test images.
    """
    strengths = {name: perturbation(name).strengths for name in perturbations}
    models, data, images = _open(folders, "tests of robustness", per_class)
    result = measure_robustness(models, images, strengths, data=data, seed=seed, batch_size=batch_size, progress=True)
    out = out or folders[0] / "robustness"
    write_json(out / "robustness.json", result.to_dict())
    panels = {}
    for name in strengths:
        curves = {network: result.curve(network, name) for network in result.networks}
        points = {
            network: np.array([(point.strength, point.accuracy, *point.interval) for point in curve]).T
            for network, curve in curves.items()
        }
        panels[name] = PERTURBATIONS[name].unit, points
    write_png(accuracy_figure(panels), out / "robustness.png")
    head = Text(f"{len(images)} test images of {data}; 95 % intervals")
    written = Text(f"written to {out / 'robustness'}.json and .png")
    return Group(head, *robustness_tables(result), written)


def study_attacks(
    folders: Sequence[Path],
    options: AttackOptions,
    *,
    per_class: int | None = 20,
    false_positive_rate: float = 0.05,
    out: Path | None = None,
) -> Group:
    """Measure the accuracy of runs under adversarial attacks, write it as JSON and a picture, and return its table.

    Args:
        folders: runs with the same test images.
        options: strengths of the attacks.
        per_class: number of test images per class; None uses all.
        false_positive_rate: rate of the OOD check, which counts the attacked images it flags.
        out: folder of the files. Default: attacks in the first run's folder.

    Raises:
        CapsellaError: runs with other test images.
    """
    models, data, images = _open(folders, "attacks", per_class)
    results = attack_networks(models, images, options, progress=True, false_positive_rate=false_positive_rate)
    values = {
        "data": data,
        "images": len(images),
        "options": {**asdict(options), "ood_false_positive_rate": false_positive_rate},
        "networks": {name: result.to_dict() for name, result in results.items()},
    }
    out = out or folders[0] / "attacks"
    write_json(out / "attacks.json", values)
    label, epsilons = "ε: largest change of a pixel", (0.0, *options.epsilons)
    panels = {
        name: (label, {curve.label: _curve(epsilons, (result.clean, *curve.accuracy)) for curve in result.curves})
        for name, result in results.items()
    }
    write_png(accuracy_figure(panels), out / "attacks.png")
    written = f"written to {out / 'attacks.json'} and {out / 'attacks.png'}"
    return Group(attack_table(results, options), *map(Text, (*attack_notes(results), written)))


def _curve(strengths: Sequence[float], accuracy: Sequence[float]) -> Float[np.ndarray, "4 points"]:
    """Return a curve without intervals for `accuracy_figure`."""
    return np.array([strengths, accuracy, accuracy, accuracy])


def _open(
    folders: Sequence[Path], purpose: str, per_class: int | None
) -> tuple[dict[str, ImageClassifier], str, ImageSet]:
    """Return the networks by name, and the name and images of their test set."""
    runs = open_runs(folders)
    data, images = shared_test_images(runs, purpose)
    if per_class is not None:
        images = images.subset(limit_per_class(images.labels, per_class, 0))
    return {name: run.model for name, run in runs.items()}, data, images
