"""Accuracy in another laboratory, without labels of it and by labelled images per class, for each way to adapt.

`python -m tools.adaptation_curve RUN LAB --out FILE` first tests what needs no labels, on all images of the laboratory:
the network as it is, averaged over eight turned and mirrored copies, with batch-norm statistics of these images, and
with each class's activation standardised over these images. It then draws up to 20 labelled images of each class (at
most half of them), and tests on all other images of the laboratory: the network as it is, and adapted with the first 5,
10 and 20 of each class in each way of `capsella adapt --how`. All networks of a draw are tested on the same images.
FILE is JSON; mean and range over ten draws, whose seed also trains, are drawn in a figure beside it.
"""

import argparse
import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsella.data import ImageSet, draw_labelled
from capsella.evaluation import Evaluation, evaluate
from capsella.evaluation.domain import domain_for
from capsella.files import write_json
from capsella.models import ImageClassifier
from capsella.report.figures import accuracy_figure, write_png
from capsella.training import AdaptOptions, Run, adapt_model
from capsella.training.adapt import update_batch_norms
from capsella.training.trained import open_run

SIZES = (0, 5, 10, 20)  # labelled images per class
HOWS = ("statistics", "last", "all")
MEASURES = ("balanced accuracy", "accuracy")
Curve = tuple[str, int]  # how, and labelled images per class


def measured(evaluation: Evaluation) -> tuple[float, float]:
    """Return the `MEASURES` in per cent."""
    return evaluation.balanced_accuracy, 100 - evaluation.error


def without_labels(model: ImageClassifier, images: ImageSet) -> dict[str, tuple[float, float]]:
    """Return the measures on all images by way. No way uses labels of the laboratory; some use its images."""
    turned = [
        replace(images, images=torch.rot90(pixels, turns, (2, 3)))
        for pixels in (images.images, images.images.flip(3))
        for turns in range(4)
    ]
    statistics = copy.deepcopy(model)
    update_batch_norms(statistics, images)
    as_is, with_statistics = evaluate(model, images), evaluate(statistics, images)
    spread, mean = torch.std_mean(as_is.activations, 0)
    ways = {
        "as it is": as_is,
        "eight turned copies": replace(
            as_is, activations=torch.stack([evaluate(model, each).activations for each in turned]).mean(0)
        ),
        "batch-norm statistics": with_statistics,
        "standardised activations": replace(as_is, activations=(as_is.activations - mean) / spread),
    }
    return {name: measured(evaluation) for name, evaluation in ways.items()}


def adapt_draw(
    run: Run, labelled: ImageSet, rest: ImageSet, ways: Sequence[AdaptOptions]
) -> dict[Curve, tuple[float, float]]:
    """Return the measures on `rest` by way and size; the first images of each class are adapted with."""
    position = torch.cat([torch.arange(count) for count in labelled.counts().values()])  # within each class
    before = measured(evaluate(run.model, rest))
    results: dict[Curve, tuple[float, float]] = {}
    for way in ways:
        results[way.how, 0] = before
        for size in SIZES[1:]:
            few = labelled.subset((position < size).nonzero().flatten())
            results[way.how, size] = measured(evaluate(adapt_model(run.model, run.recipe, few, way), rest))
    return results


def summarize(draws: Sequence[dict[Curve, tuple[float, float]]]) -> list[dict[str, Any]]:
    """Return a row for each way and size: for each measure the values of all draws, their mean and their range."""
    rows = []
    for how, size in draws[0]:
        row: dict[str, Any] = {"how": how, "per_class": size}
        for measure, values in zip(MEASURES, zip(*(draw[how, size] for draw in draws), strict=True), strict=True):
            row[measure] = {"mean": float(np.mean(values)), "range": [min(values), max(values)], "draws": values}
        rows.append(row)
    return rows


def write(out: Path, about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Write the JSON, and the figure beside it."""
    write_json(out, {**about, "rows": rows})
    panels = {}
    for measure in MEASURES:
        curves = defaultdict(list)
        for row in rows:
            curves[row["how"]].append([row["per_class"], row[measure]["mean"], *row[measure]["range"]])
        panels[measure] = ("labelled images per class", {how: np.array(points).T for how, points in curves.items()})
    write_png(accuracy_figure(panels), out.with_suffix(".png"))


def main() -> None:
    """Adapt and test; write after each draw."""
    parser = argparse.ArgumentParser(prog="python -m tools.adaptation_curve", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("lab", help="a folder, an .npz file or a named data set")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--group", help="as for capsella adapt")
    parser.add_argument("--how", nargs="+", choices=HOWS, default=HOWS)
    parser.add_argument("--draws", type=int, default=10, help="0: only what needs no labels")
    arguments = parser.parse_args()
    run = open_run(arguments.run)
    domain = domain_for(run, arguments.lab, arguments.group)
    print(*domain.lines(), sep="\n")
    counts = {name: count for name, count in domain.images.counts().items() if count}
    unlabelled = without_labels(run.model, domain.images)
    for way, values in unlabelled.items():
        print(way, *(f"{measure} {value:.1f}" for measure, value in zip(MEASURES, values, strict=True)), sep=", ")
    about = {"run": run.name, "laboratory": domain.name, "images": counts, "without_labels": unlabelled}
    write_json(arguments.out, about)
    draws, tested = [], []
    for seed in range(arguments.draws):
        labelled, rest, _ = draw_labelled(domain.images, max(SIZES), seed)
        ways = [AdaptOptions(how=how, seed=seed) for how in arguments.how]
        draws.append(adapt_draw(run, labelled, rest, ways))
        tested.append(len(rest))
        write(arguments.out, {**about, "tested": tested}, summarize(draws))
    for row in summarize(draws) if draws else []:
        each = {measure: (row[measure]["mean"], *row[measure]["range"]) for measure in MEASURES}
        texts = [f"{measure} {mean:.1f} ({low:.1f} to {high:.1f})" for measure, (mean, low, high) in each.items()]
        print(f"{row['how']}, {row['per_class']} per class: {', '.join(texts)}")


if __name__ == "__main__":
    main()
