"""How much accuracy changed test images cost: Forslöv 2018, Table 4, at several strengths and for several networks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from rich.table import Table
from rich.text import Text
from torch import Tensor

from capsella.data import ImageSet, batches
from capsella.errors import ArgumentError, check_argument, not_negative
from capsella.evaluation.accuracy.evaluation import Evaluation
from capsella.evaluation.robustness.changes import PERTURBATIONS, perturbation
from capsella.files import write_csv
from capsella.models import ImageClassifier
from capsella.models.inference import inference
from capsella.progress import tracked

THESIS = ("rotation", "translation", "colour", "noise")
# Images are changed this many at a time, whatever the batch size of the networks, so that the same seed draws the same.
CHUNK = 128

Strengths = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class RobustnessPoint:
    """One network on the test images under one change. accuracy, interval: per cent; 95 % interval (Wilson 1927).

    hits: which images are right.
    """

    network: str
    perturbation: str
    strength: float
    images: int
    correct: int
    accuracy: float
    interval: tuple[float, float]
    hits: Bool[np.ndarray, " images"] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Robustness:
    """The accuracies of networks on the same changed images: a point for each network, perturbation and strength."""

    data: str
    """What the images are called."""
    seed: int
    points: tuple[RobustnessPoint, ...]

    @property
    def networks(self) -> list[str]:
        """In the order given."""
        return list(dict.fromkeys(point.network for point in self.points))

    @property
    def perturbations(self) -> list[str]:
        """In the order given."""
        return list(dict.fromkeys(point.perturbation for point in self.points))

    def curve(self, network: str, perturbation: str) -> list[RobustnessPoint]:
        """The points of one network under one perturbation, by strength."""
        return [point for point in self.points if (point.network, point.perturbation) == (network, perturbation)]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "data": self.data,
            "seed": self.seed,
            "units": {name: PERTURBATIONS[name].unit for name in self.perturbations},
            "points": self._rows(),
        }

    def write_csv(self, path: Path) -> None:
        """A row a point, whole or not at all."""
        rows = self._rows()
        write_csv(path, list(rows[0]), (row.values() for row in rows))

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "network": point.network,
                "perturbation": point.perturbation,
                "strength": point.strength,
                "images": point.images,
                "correct": point.correct,
                "accuracy_percent": point.accuracy,
                "low_95_percent": point.interval[0],
                "high_95_percent": point.interval[1],
            }
            for point in self.points
        ]

    def tables(self) -> list[Table]:
        """For a terminal: a table each perturbation, a row a network, a column a strength, the interval below."""
        tables = []
        for name in self.perturbations:
            strengths = [point.strength for point in self.curve(self.networks[0], name)]
            unit = PERTURBATIONS[name].unit
            table = Table(title=f"{name} ({unit})", title_justify="left", show_lines=True, padding=0)
            table.add_column("accuracy %", overflow="fold")
            for strength in strengths:
                table.add_column(f"{strength:g}", justify="right", no_wrap=True)
            for network in self.networks:
                # Text, not str: a run may be called "[red]".
                table.add_row(Text(network), *(_cell(point) for point in self.curve(network, name)))
            tables.append(table)
        return tables


def measure_robustness(
    models: Mapping[str, ImageClassifier],
    images: ImageSet,
    strengths: Strengths | None = None,
    *,
    data: str = "test images",
    seed: int = 0,
    batch_size: int = 128,
    progress: bool = False,
) -> Robustness:
    """The accuracy of each model on the same images, changed by each perturbation at each of its strengths.

    Forslöv 2018, §8.3 and Table 4. Only test images are changed, after training. Images are changed once for all
    models, the same for the same seed on any device.

    Args:
        models: trained, by the name they are shown under; all of the same classes, channels and size.
        images: the test images.
        strengths: of each perturbation by its name in `PERTURBATIONS`; None takes the thesis's four at their default
            strengths. The unchanged images, strength 0, are always there.
        data: what the images are called.
        seed: of what is drawn.
        batch_size: images at a time, at most 128.
        progress: show a bar on standard error.

    Raises:
        ValueError: no models or images, other classes, channels or sizes, an unknown perturbation, a strength outside
            its range, activations that are not finite.
    """
    _check(models, images, batch_size, seed)
    cases = _cases({name: PERTURBATIONS[name].strengths for name in THESIS} if strengths is None else strengths)
    found: dict[tuple[str, str, float], RobustnessPoint] = {}
    unchanged: dict[str, Evaluation] = {}
    for name, strength in tracked(cases, "robustness", is_shown=progress):
        evaluations = unchanged if strength == 0 else {}
        if not evaluations:
            evaluations |= _evaluate(models, images, name, strength, seed, batch_size)
        for network, evaluation in evaluations.items():
            found[network, name, strength] = _point(network, name, strength, evaluation)
    return Robustness(data, seed, tuple(found[network, *case] for network in models for case in cases))


def perturbed(images: ImageSet, name: str, strength: float, seed: int = 0) -> Iterator[Tensor]:
    """The images [b c h w] in [0, 1] as `robustness` changes them, 128 at a time.

    Raises:
        ValueError: an unknown perturbation, a strength outside its range.
    """
    change = perturbation(name).change
    generator = torch.Generator().manual_seed(seed)
    for batch in batches(images, CHUNK, device="cpu"):
        yield change(batch.images, strength, generator)


def _evaluate(
    models: Mapping[str, ImageClassifier], images: ImageSet, name: str, strength: float, seed: int, batch_size: int
) -> dict[str, Evaluation]:
    activations: dict[str, list[Tensor]] = {network: [] for network in models}
    for changed in perturbed(images, name, strength, seed):
        for network, model in models.items():
            with inference(model) as device:
                for part in changed.split(batch_size):
                    activations[network].append(model(part.to(device)).activations.float().cpu())
    labels, group = images.labels.cpu(), images.group
    return {
        network: Evaluation(torch.cat(parts).clone(), labels, images.classes, group=group)
        for network, parts in activations.items()
    }


def _point(network: str, name: str, strength: float, evaluation: Evaluation) -> RobustnessPoint:
    count, (low, high) = len(evaluation.labels), evaluation.error_interval
    correct = count - evaluation.errors
    interval, hits = (100 - high, 100 - low), evaluation.correct.numpy()
    return RobustnessPoint(network, name, strength, count, correct, 100 * correct / count, interval, hits)


def _check(models: Mapping[str, ImageClassifier], images: ImageSet, batch_size: int, seed: int) -> None:
    if not models:
        raise ArgumentError("models", "hold at least one trained model", None)
    if len(images) == 0:
        raise ArgumentError("images", "hold at least one labelled image", None)
    check_argument(1 <= batch_size <= CHUNK, f"be from 1 to {CHUNK}", batch_size=batch_size)
    not_negative(seed=seed)
    for network, model in models.items():
        if model.classes != images.classes:
            raise ValueError(f"models: {network} must have the images' classes {images.classes}, got {model.classes}")
        model.check_images(images.images)


def _cases(chosen: Strengths) -> list[tuple[str, float]]:
    """Each perturbation with each strength, rising from 0; checked before anything is computed."""
    if not chosen:
        raise ArgumentError("strengths", f"name at least one perturbation of {', '.join(PERTURBATIONS)}", None)
    cases = [(name, strength) for name, given in chosen.items() for strength in sorted({0.0, *map(float, given)})]
    for name, strength in cases:
        perturbation(name).change(torch.zeros(1, 1, 4, 4), strength, torch.Generator())
    return cases


def _cell(point: RobustnessPoint) -> str:
    low, high = point.interval
    return f"{point.accuracy:.1f}\n{low:.1f}–{high:.1f}"
