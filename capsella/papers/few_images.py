"""Few training images: does an advantage of capsules come from routing, from the capsules, or from the small network?

Efficient-CapsNet, the same network with uniform couplings, its convolutions with two heads without capsules, and a
residual network learn from 5 to 100 images per class. Every draw has its own images and initial weights; within a draw
all networks see the same images, so draws are paired. The plan (results/plans.md, E12) preceded the first run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console

from capsella.data import DataOptions, LoadedSource, NamedData, load_source
from capsella.errors import unknown_name
from capsella.evaluation import Interval, holm_adjusted, over_seeds, points
from capsella.experiments import (
    CorrectnessTable,
    Row,
    Task,
    ValidationResult,
    check_seeds,
    scaled_learning_rate,
    with_learning_rate,
)
from capsella.files import write_json
from capsella.papers.budget import BudgetName
from capsella.papers.own_images import usual_epochs
from capsella.papers.table_types import hardware_of, override, table_values, with_test
from capsella.routing import UniformRouting
from capsella.training import AugmentOptions, Recipe
from capsella.training.registry import get_recipe

SIZES = (5, 10, 20, 50, 100)  # training images per class; the small budget uses only the first
FACTORS = (1 / 3, 1.0, 3.0)  # candidate learning rates, as multiples of the recipe's
CHOICE_IMAGES, CHOICE_VALIDATION = 20, 40  # images per class of the draw on which learning rates are chosen
CHOICE_DRAW = 100  # seed of that draw, which must not be one of the results' draws
VALIDATION = 5  # validation images per class in the trainings that are reported; they choose nothing
SMALL_EPOCHS = 10
FEW = 640  # with fewer training images, batches hold 16 instead of 32, as for a user's folder
CAPSULES = "Efficient-CapsNet"
COLUMNS = ("draws", "rate", "error, ours %", f"{CAPSULES} gains, points", "p, Holm", "detects, points")
HALVE = {"halve_from": 48}  # as in images-efficient


class ImageKind(NamedTuple):
    """The classes, size, channels and augmentation of a source's images."""

    classes: int
    size: int
    channels: Literal[1, 3]
    augment: AugmentOptions


SOURCES = {
    "pbc": ImageKind(8, 64, 3, AugmentOptions(shift=4, padding_mode="border", flip=True)),
    "fashion-mnist": ImageKind(10, 32, 1, AugmentOptions(shift=2, mirror=True)),
    "digits": ImageKind(10, 32, 1, AugmentOptions(shift=2)),
}


def _recipes(pretrained: bool = False) -> dict[str, tuple[str, Recipe]]:
    """Return, by network, the name of the registered recipe it is based on, and its own recipe."""
    efficient = get_recipe("images-efficient")
    if pretrained:
        head = get_recipe("images-backbone-linear").with_model(backbone="efficientnet_lite0")
        tuned = override(head, {"model.fine_tune": True, "optimizer.learning_rate": head.optimizer.learning_rate / 10})
        recipes = {CAPSULES: efficient, "frozen EfficientNet-Lite0": head, "fine-tuned EfficientNet-Lite0": tuned}
        names = ("images-efficient", "images-backbone-linear", "images-backbone-linear")
        return dict(zip(recipes, zip(names, recipes.values(), strict=True), strict=True))
    heads = {
        "average pooling": efficient.with_network("mazzia2021_average_pooling").with_model(**HALVE),
        "depthwise kernel": efficient.with_network("mazzia2021_depthwise_linear").with_model(**HALVE),
    }
    recipes = {CAPSULES: efficient, "uniform couplings": efficient.with_model(routing=UniformRouting()), **heads}
    return {name: ("images-efficient", recipe) for name, recipe in recipes.items()} | {
        "ResNet": ("images-resnet", get_recipe("images-resnet"))
    }


@dataclass(frozen=True)
class FewImages:
    """The table of errors with few training images. pretrained: compare with frozen and fine-tuned ImageNet weights."""

    budget: BudgetName
    pretrained: bool = False
    source: str = "pbc"
    title: str = "Few images: capsules, and the same network without routing or without capsules"
    columns: tuple[str, ...] = ("images per class", "network")
    family: str = "few-images"

    def on(self, source: str) -> "FewImages":
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

    @property
    def note(self) -> str:
        """The text below the table: how networks were trained and what the intervals cover."""
        epochs = "100 epochs, or as many as show 45,090 images" if self.budget != "small" else f"{SMALL_EPOCHS} epochs"
        return (
            f"Images of {SOURCES[self.source].size} pixels. A draw takes other training images and other first "
            f"weights, the same images for all networks. {epochs.capitalize()}; the last one is kept. Learning rates: "
            f"a third, one and three times the recipe's, chosen in one training of {CHOICE_IMAGES} images per class by "
            f"the error on {CHOICE_VALIDATION} others per class. Gains of {CAPSULES} have a 95 % interval over draws "
            "(paired) and test images; p values are adjusted for all comparisons of the table (Holm 1979)."
        )

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Train and test the missing runs, fewest images first, and write the table after every draw.

        Raises:
            ValueError: no seeds, or duplicate seeds.
            CapsellaError: the folder holds a run of another recipe, or images cannot be read.
        """
        check_seeds(seeds)
        series = _Series(self, folder, console)
        rates = series.choose()
        values: dict[str, Any] = {}
        for size in SIZES[:1] if self.budget == "small" else SIZES:
            for seed in seeds:
                series.compute(size, seed, rates)
                values = table_values(self, series.measured(), command, COLUMNS, series.rows(rates))
                write_json(self.path(folder), values)
        return values


@dataclass
class _Series:
    """The runs on one source, whose images are read once. results: test results by (images per class, network)."""

    table: FewImages
    folder: Path
    console: Console
    results: dict[tuple[int, str], list[dict[str, Any]]] = field(default_factory=dict)
    _source: LoadedSource | None = None

    def choose(self) -> dict[str, float]:
        """Return the learning rate of each network with the lowest validation error (ties: validation loss)."""
        data = self._data(CHOICE_IMAGES, CHOICE_VALIDATION, CHOICE_DRAW)
        rates = {}
        for name, row in self._rows(CHOICE_IMAGES, data):
            tried = {}
            for rate in (scaled_learning_rate(row.recipe, factor) for factor in FACTORS):
                short = with_learning_rate(replace(row, slug=f"choice-{row.slug}"), rate)
                tried[rate] = ValidationResult.of(self._train(short, 0, is_tested=False).files).rank
            rates[name] = min(tried, key=tried.__getitem__)
        return rates

    def compute(self, size: int, seed: int, rates: Mapping[str, float]) -> None:
        """Train and test all networks on one draw of `size` images per class."""
        for name, row in self._rows(size, self._data(size, VALIDATION, seed)):
            result = self._train(with_learning_rate(row, rates[name]), seed, is_tested=True).result()
            if result is not None:
                self.results.setdefault((size, name), []).append(result)

    def _train(self, row: Row, seed: int, *, is_tested: bool) -> Task:
        task = row.task(self.folder, seed, is_tested=is_tested)
        if not task.is_finished:
            self.console.print(task.label, markup=False)
            if self._source is None:
                self._source = load_source(replace(task.recipe.data, per_class=None, validation_per_class=None))
            task.run(self.console, self._source.split(task.recipe.data))
            task.files.checkpoint.unlink(missing_ok=True)
        return task

    def _data(self, size: int, validation: int, draw: int) -> DataOptions:
        kind = SOURCES[self.table.source]
        return NamedData(
            self.table.source,
            size=kind.size,
            channels=kind.channels,
            per_class=size,
            validation_per_class=validation,
            test_per_class=20 if self.table.budget == "small" else None,
            split_seed=draw,
        )

    def _rows(self, size: int, data: DataOptions) -> Iterator[tuple[str, Row]]:
        images = size * SOURCES[self.table.source].classes
        epochs = SMALL_EPOCHS if self.table.budget == "small" else usual_epochs(30, images)
        for name, (recipe_name, recipe) in _recipes(self.table.pretrained).items():
            recipe = replace(
                recipe,
                data=data,
                augment=SOURCES[self.table.source].augment,
                epochs=epochs,
                batch_size=16 if images < FEW else 32,
                balance="none",
                keep="last",
            )
            yield name, Row(slug=f"{size}-{name.lower().replace(' ', '-')}", recipe_name=recipe_name, recipe=recipe)

    def measured(self) -> str:
        """Describe the test images and the hardware."""
        runs = [run for of_row in self.results.values() for run in of_row]
        tested = runs[0]["test"]["images"]
        return f"Test error on {runs[0]['data']}, {tested} images; {hardware_of({'all': runs})}."

    def rows(self, rates: Mapping[str, float]) -> list[dict[str, Any]]:
        """Return the JSON of every row, with the gain of the capsules over that network on their common draws."""
        gains = {
            (size, name): gain
            for size, name in self.results
            if name != CAPSULES and (gain := self._gain(size, name)) is not None
        }
        adjusted = dict(zip(gains, holm_adjusted([gain.p_value for gain in gains.values()]), strict=True))
        rows = []
        for (size, name), runs in self.results.items():
            gain, errors = gains.get((size, name)), [run["test"]["error_percent"] for run in runs]
            cells = [str(size), name, str(len(runs)), f"{rates[name]:g}", over_seeds(errors)]
            if gain is None:
                cells += ["–"] * 3
            else:
                interval = f"{points(gain.estimate)} [{points(gain.low)}, {points(gain.high)}]"
                cells += [interval, f"{adjusted[size, name]:.2g}", points(gain.detectable, signed=False)]
            rows.append(
                {
                    "cells": cells,
                    "label": [size, name],
                    "rate": rates[name],
                    "error_percent": errors,
                    "gain": None if gain is None else {**with_test(gain), "p_holm": adjusted[size, name]},
                    "runs": runs,
                }
            )
        return rows

    def _gain(self, size: int, name: str) -> Interval | None:
        """Return the capsules' gain in accuracy over a network; None with fewer than two common draws."""
        first, second = (
            {run["seed"]: run["test"] for run in self.results.get((size, n), [])} for n in (CAPSULES, name)
        )
        draws = [draw for draw in first if draw in second]
        if len(draws) < 2:
            return None
        tables = [CorrectnessTable.from_tests([tests[draw] for draw in draws]) for tests in (first, second)]
        return tables[0].difference_from(tables[1], paired_seeds=True)
