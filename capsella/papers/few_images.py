"""Few training images: does an advantage of capsules come from routing, from the capsules, or from the small network?

Efficient-CapsNet, the same network with uniform couplings, its convolutions with two heads without capsules, and a
residual network with either of two stems learn from 5 to 100 images per class; from 300, only Efficient-CapsNet and the
residual networks do. A second table compares with ImageNet weights, frozen and fine-tuned. Every draw has its own
images and initial weights; within a draw all networks see the same images, so draws are paired. The plan
(results/plans.md, E12) preceded the first run; the second stem was added after the primary comparison.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.console import Console

from capsella.data import LoadedSource, NamedData, load_source
from capsella.errors import unknown_name
from capsella.evaluation import Interval, holm_adjusted, over_seeds
from capsella.experiments import (
    CorrectnessTable,
    Row,
    Task,
    ValidationResult,
    check_seeds,
    scaled_learning_rate,
    with_learning_rate,
)
from capsella.papers.budget import BudgetName
from capsella.papers.own_images import SMALL_BATCH_BELOW, usual_epochs
from capsella.papers.table_types import Published, gain_cells, measured_text, with_test
from capsella.routing import UniformRouting
from capsella.training import AugmentOptions, Recipe
from capsella.training.registry import get_recipe

SIZES = (5, 10, 20, 50, 100, 300)  # training images per class; the small budget uses only the first
LARGEST_OF_ALL = 100  # beyond it, heads without capsules and uniform couplings are not trained
FACTORS = (1 / 3, 1.0, 3.0)  # candidate learning rates, as multiples of the recipe's
CHOICE_IMAGES, CHOICE_VALIDATION = 20, 40  # images per class of the draw on which learning rates are chosen
CHOICE_DRAW = 100  # seed of that draw, which must not be one of the results' draws
VALIDATION = 5  # validation images per class in the trainings that are reported; they choose nothing
SMALL_EPOCHS = 10
POOLED = 64  # side from which the residual network of the first plan pools before its first block
CAPSULES, RESNET, FINER_RESNET = "Efficient-CapsNet", "ResNet", "ResNet, halved once"
FROZEN, FINE_TUNED = "frozen EfficientNet-Lite0", "fine-tuned EfficientNet-Lite0"
ENLARGED = 2  # networks with ImageNet weights see images of this many times the side; they are worse at 64 pixels
COLUMNS = ("draws", "rate", "error, ours %", f"{CAPSULES} gains, points", "p, Holm", "detects, points")


class ImageKind(NamedTuple):
    """Images of a source without limits, the number of their classes, and their augmentation."""

    data: NamedData
    classes: int
    augment: AugmentOptions


SOURCES = {
    kind.data.name: kind
    for kind in (
        ImageKind(NamedData("pbc", size=64, channels=3), 8, AugmentOptions(shift=4, padding_mode="border", flip=True)),
        ImageKind(NamedData("fashion-mnist", size=32, channels=1), 10, AugmentOptions(shift=2, mirror=True)),
        ImageKind(NamedData("digits", size=32, channels=1), 10, AugmentOptions(shift=2)),
    )
}
NOTE = (
    "A draw takes other training images and other first weights, the same images for all networks. Learning rates were "
    f"chosen on other images. Gains of {CAPSULES} have a 95 % interval over draws (paired) and test images; p values "
    "are adjusted for all comparisons of the table (Holm 1979)."
)
NOTE_PRETRAINED = f"The networks with ImageNet weights see {ENLARGED} times as many pixels per side. {NOTE}"
Cell = tuple[int, str]  # images per class, and network
Source = Callable[[int | None], LoadedSource]  # images of a number of pixels per side


def _recipes(pretrained: bool = False) -> dict[str, tuple[str, Recipe]]:
    """Return, by network, the name of the registered recipe it is based on, and its own recipe."""
    efficient = get_recipe("images-efficient")
    ours = {CAPSULES: ("images-efficient", efficient)}
    if pretrained:
        names = {FROZEN: "images-backbone-linear", FINE_TUNED: "images-fine-tuned"}
        return ours | {network: (name, get_recipe(name)) for network, name in names.items()}
    pooled, depthwise = (
        efficient.with_network(f"mazzia2021_{head}").with_model(halve_from=48)  # as in images-efficient
        for head in ("average_pooling", "depthwise_linear")
    )
    return ours | {
        "uniform couplings": ("images-efficient", efficient.with_model(routing=UniformRouting())),
        "average pooling": ("images-efficient", pooled),
        "depthwise kernel": ("images-efficient", depthwise),
        RESNET: ("images-resnet", get_recipe("images-resnet").with_model(pool_from=POOLED)),
        FINER_RESNET: ("images-resnet", get_recipe("images-resnet")),
    }


@dataclass(frozen=True, kw_only=True)
class FewImages(Published):
    """The table of errors with few training images. pretrained: compare with frozen and fine-tuned ImageNet weights."""

    budget: BudgetName
    pretrained: bool = False
    source: str = "pbc"
    title: str = "Few images: capsules, and the same network without routing or without capsules"
    note: str = NOTE
    columns: tuple[str, ...] = ("images per class", "network")
    family: str | None = "few-images"

    def on(self, source: str) -> Self:
        """Return the table for another source of images.

        Raises:
            ArgumentError: not one of `SOURCES`.
        """
        if source not in SOURCES:
            raise unknown_name("data", source, SOURCES)
        return replace(self, source=source)

    def path(self, folder: Path) -> Path:
        """Return the path of the JSON."""
        return folder / f"{folder.resolve().name}{'-pretrained' if self.pretrained else ''}.json"

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Train and test the missing runs, fewest images first, and write the table after every draw.

        Raises:
            ValueError: no seeds, or duplicate seeds.
            CapsellaError: the folder holds a run of another recipe, or images cannot be read.
        """
        check_seeds(seeds)

        @cache  # read once for all draws, which differ in how it is split, and only if something is left to train
        def source(size: int | None) -> LoadedSource:
            return load_source(SOURCES[self.source].data.replace(size=size))

        rates = self._choose_rates(folder, console, source)
        results: dict[Cell, list[dict[str, Any]]] = {}
        values: dict[str, Any] = {}
        for size in SIZES[:1] if self.budget == "small" else SIZES:
            for seed in seeds:
                for name, row in self.rows_of(size, VALIDATION, seed).items():
                    task = with_learning_rate(row, rates[name]).task(folder, seed)
                    _compute(task, console, source)
                    if (result := task.result()) is not None:
                        results.setdefault((size, name), []).append(result)
                measured = measured_text("Test error", {str(cell): runs for cell, runs in results.items()})
                values = self.write(folder, command, measured, COLUMNS, _rows(results, rates))
        return values

    def rows_of(self, size: int, validation: int, draw: int) -> dict[str, Row]:
        """Return the row of each network for a draw with these numbers of images per class."""
        kind, is_small = SOURCES[self.source], self.budget == "small"
        test, images = 20 if is_small else None, size * kind.classes
        data = kind.data.replace(per_class=size, validation_per_class=validation, test_per_class=test, split_seed=draw)

        def changed(recipe: Recipe) -> Recipe:
            batch_size = min(recipe.batch_size, 16) if images < SMALL_BATCH_BELOW else recipe.batch_size
            scale = ENLARGED if "backbone" in recipe.model.options else 1
            scaled = data.replace(size=scale * (data.size or 0) or None)
            recipe = replace(recipe, data=scaled, balance="none", batch_size=batch_size)
            if _is_fitted(recipe):
                return recipe
            return replace(
                recipe,
                augment=replace(kind.augment, shift=scale * kind.augment.shift),
                epochs=SMALL_EPOCHS if is_small else usual_epochs(recipe.epochs, images),
                keep="last",
            )

        return {
            name: Row(
                slug=f"{size}-{name.lower().replace(',', '').replace(' ', '-')}",
                recipe_name=recipe_name,
                recipe=changed(recipe),
            )
            for name, (recipe_name, recipe) in _recipes(self.pretrained).items()
            if (size <= LARGEST_OF_ALL or self.pretrained or name in (CAPSULES, RESNET, FINER_RESNET))
            and (name != FINER_RESNET or (kind.data.size or 0) >= POOLED)  # smaller images are pooled by neither
        }

    def _choose_rates(self, folder: Path, console: Console, source: Source) -> dict[str, float]:
        """Return the learning rate of each network with the lowest validation error (ties: validation loss)."""
        rates = {}
        for name, row in self.rows_of(CHOICE_IMAGES, CHOICE_VALIDATION, CHOICE_DRAW).items():
            if _is_fitted(row.recipe):  # it has no learning rate
                rates[name] = row.recipe.optimizer.learning_rate
                continue
            tried = {}
            for rate in (scaled_learning_rate(row.recipe, factor) for factor in FACTORS):
                short = with_learning_rate(replace(row, slug=f"choice-{row.slug}"), rate)
                task = short.task(folder, 0, is_tested=False)
                _compute(task, console, source)
                tried[rate] = ValidationResult.of(task.files).rank
            rates[name] = min(tried, key=tried.__getitem__)
        return rates


def pretrained_table(budget: BudgetName) -> FewImages:
    """Return the table that compares with ImageNet weights."""
    return FewImages(
        budget=budget, pretrained=True, title="Few images: capsules and ImageNet weights", note=NOTE_PRETRAINED
    )


def _is_fitted(recipe: Recipe) -> bool:
    return recipe.optimizer.method == "logistic_regression"


def _compute(task: Task, console: Console, source: Source) -> None:
    if not task.is_finished:
        console.print(task.label, markup=False)
        task.run(console, source(task.recipe.data.size).split(task.recipe.data))
        task.files.checkpoint.unlink(missing_ok=True)


def _rows(results: Mapping[Cell, list[dict[str, Any]]], rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the JSON of every row, with the gain of the capsules over that network on their common draws."""
    gains = {
        (size, name): gain
        for size, name in results
        if name != CAPSULES and (gain := _gain(results.get((size, CAPSULES), []), results[size, name])) is not None
    }
    adjusted = dict(zip(gains, holm_adjusted([gain.p_value for gain in gains.values()]), strict=True))
    rows = []
    for (size, name), runs in results.items():
        gain, p_value = gains.get((size, name)), adjusted.get((size, name))
        errors = [run["test"]["error_percent"] for run in runs]
        tested = with_test(gain)
        rows.append(
            {
                "cells": [
                    *(str(size), name, str(len(runs)), "–" if name == FROZEN else f"{rates[name]:g}"),
                    over_seeds(errors),
                    *gain_cells(gain, p_value),
                ],
                "label": [size, name],
                "rate": rates[name],
                "error_percent": errors,
                "gain": None if tested is None else {**tested, "p_holm": p_value},
                "runs": runs,
            }
        )
    return rows


def _gain(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> Interval | None:
    """Return the gain in accuracy of the first network over the second; None with fewer than two common draws."""
    tests = [{run["seed"]: run["test"] for run in runs} for runs in (first, second)]
    draws = [draw for draw in tests[0] if draw in tests[1]]
    if len(draws) < 2:
        return None
    tables = [CorrectnessTable.from_tests([of_network[draw] for draw in draws]) for of_network in tests]
    return tables[0].difference_from(tables[1], paired_seeds=True)
