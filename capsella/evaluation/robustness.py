"""Robustness to perturbations of the test images that training did not show: Forslöv 2018, §8.3 (thesis), Table 4.

Each perturbation is a pure function (images [b c h w] in [0, 1], strength, generator) → images of the same shape in
[0, 1]. A strength of 0 changes nothing. With generators of the same seed, every strength gets the same directions and
relative amounts, so that a curve shows the effect of the strength alone.

The thesis names the changes without strengths; the defaults are ours. It may have cropped moved images from larger
photographs; here the border pixels are repeated outwards, which adds neither black corners nor a second cell.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data import ImageSet, batches
from capsella.errors import check_argument, not_negative, unknown_name
from capsella.evaluation.metrics import Evaluation
from capsella.models import ImageClassifier
from capsella.models.inference import inference
from capsella.progress import tracked

Images = Float[Tensor, "b c h w"]
THESIS = ("rotation", "translation", "colour", "noise")  # Table 4
# Images perturbed at a time, whatever the batch size of the networks: so a seed always draws the same numbers.
CHUNK = 128


def flips(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Flip each image horizontally and vertically, each with the probability `strength`."""
    left, top = torch.rand(2, len(images), 1, 1, 1, generator=generator) < strength
    images = torch.where(left, images.flip(3), images)
    return torch.where(top, images.flip(2), images)


def rotation(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Flip each way with probability ½, then rotate by an angle within ± `strength` degrees; at 0 no flips either.

    The thesis tests flips and rotation together; `flips` tests the former alone.
    """
    if strength == 0:
        return images
    from kornia.geometry.transform import rotate  # over a second to import

    turn = _within(strength, (len(images),), generator)
    flipped = flips(images, 0.5, generator)
    turned: Tensor = rotate(flipped, turn, padding_mode="border")
    return turned.clamp(0, 1)


def translation(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Move by up to a fraction `strength` of each side, to the nearest pixel, so that nothing is blurred."""
    batch, _, height, width = images.shape
    sides = torch.tensor([height, width])
    moves = (_within(strength, (batch, 2), generator) * sides).round().long()  # down and right
    rows = (torch.arange(height) - moves[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width) - moves[:, 1:]).clamp(0, width - 1)
    image = torch.arange(batch)[:, None, None]
    return images.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def colour(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Add a constant within ± `strength` to each channel of each image."""
    return (images + _within(strength, (*images.shape[:2], 1, 1), generator)).clamp(0, 1)


def noise(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Add Gaussian noise with the standard deviation `strength`."""
    return (images + strength * torch.randn(images.shape, generator=generator)).clamp(0, 1)


def _within(strength: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return strength * (2 * torch.rand(shape, generator=generator) - 1)


@dataclass(frozen=True)
class Perturbation:
    """A perturbation, the unit of its strength, its default strengths, and the largest strength."""

    change: Callable[[Tensor, float, torch.Generator], Tensor]
    unit: str
    strengths: tuple[float, ...]
    most: float = 1.0


PERTURBATIONS = {
    "rotation": Perturbation(rotation, "degrees, with flips", (0, 15, 45, 90, 180), 180.0),
    "translation": Perturbation(translation, "share of the side", (0, 0.05, 0.1, 0.15, 0.2, 0.25)),
    "colour": Perturbation(colour, "added to a channel", (0, 0.05, 0.1, 0.2, 0.3)),
    "noise": Perturbation(noise, "standard deviation", (0, 0.02, 0.05, 0.1, 0.2)),
    "flips": Perturbation(flips, "probability of each", (0, 0.5)),
}


def perturbation(name: str) -> Perturbation:
    """Return the perturbation of that name."""
    if name not in PERTURBATIONS:
        raise unknown_name("perturbation", name, PERTURBATIONS)
    return PERTURBATIONS[name]


@dataclass(frozen=True)
class RobustnessPoint:
    """The accuracy of one network under one perturbation at one strength, in per cent, with a 95 % Wilson interval."""

    network: str
    perturbation: str
    strength: float
    images: int
    correct: int
    accuracy: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Robustness:
    """Accuracies on the same perturbed images: a point for each network, perturbation and strength."""

    data: str  # name of the images
    seed: int
    points: tuple[RobustnessPoint, ...]

    @property
    def networks(self) -> list[str]:
        """The names of the networks, in the given order."""
        return list(dict.fromkeys(point.network for point in self.points))

    @property
    def perturbations(self) -> list[str]:
        """The names of the perturbations, in the given order."""
        return list(dict.fromkeys(point.perturbation for point in self.points))

    def curve(self, network: str, perturbation: str) -> list[RobustnessPoint]:
        """Return the points of one network under one perturbation, by strength."""
        return [point for point in self.points if (point.network, point.perturbation) == (network, perturbation)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        points = [
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
        units = {name: PERTURBATIONS[name].unit for name in self.perturbations}
        return {"data": self.data, "seed": self.seed, "units": units, "points": points}


def measure_robustness(
    models: Mapping[str, ImageClassifier],
    images: ImageSet,
    strengths: Mapping[str, Sequence[float]] | None = None,
    *,
    data: str = "test images",
    seed: int = 0,
    batch_size: int = CHUNK,
    progress: bool = False,
) -> Robustness:
    """Measure the accuracy of each model on the same images under each perturbation at each strength.

    Images are perturbed once for all models, and in the same way for the same seed on any device.

    Args:
        models: trained, by name; all of the same classes, channels and size.
        images: the test images.
        strengths: by the name of a perturbation in `PERTURBATIONS`; None takes the thesis's four at their default
            strengths. Strength 0 is always included.
        data: name of the images.
        seed: seed of the random numbers.
        batch_size: images that a network classifies at a time, at most 128.
        progress: show a progress bar on standard error.
    """
    check_argument(
        bool(models) and len(images) > 0, "be at least one each", models_and_images=(len(models), len(images))
    )
    check_argument(1 <= batch_size <= CHUNK, f"be from 1 to {CHUNK}", batch_size=batch_size)
    not_negative(seed=seed)
    for model in models.values():
        check_argument(model.classes == images.classes, f"have the classes {images.classes}", models=model.classes)
        model.check_images(images.images)
    cases = _cases({name: PERTURBATIONS[name].strengths for name in THESIS} if strengths is None else strengths)
    points: dict[tuple[str, str, float], RobustnessPoint] = {}
    unchanged: dict[str, Evaluation] = {}
    for name, strength in tracked(cases, "robustness", is_shown=progress):
        evaluations = unchanged if strength == 0 else {}
        if not evaluations:
            evaluations |= _evaluate(models, images, perturbed(images, name, strength, seed), batch_size)
        for network, evaluation in evaluations.items():
            count, (low, high) = len(evaluation.labels), evaluation.error_interval
            correct = count - evaluation.errors
            point = network, name, strength, count, correct, 100 * correct / count, (100 - high, 100 - low)
            points[network, name, strength] = RobustnessPoint(*point)
    return Robustness(data, seed, tuple(points[network, *case] for network in models for case in cases))


def _cases(chosen: Mapping[str, Sequence[float]]) -> list[tuple[str, float]]:
    """Return each perturbation with each strength, ascending from 0."""
    check_argument(bool(chosen), f"name at least one perturbation of {', '.join(PERTURBATIONS)}", strengths=chosen)
    for name, strengths in chosen.items():
        most = perturbation(name).most
        inside = all(0 <= strength <= most for strength in strengths)
        check_argument(inside, f"be from 0 to {most:g} for {name}", strengths=tuple(strengths))
    return [(name, strength) for name, values in chosen.items() for strength in sorted({0.0, *map(float, values)})]


def perturbed(images: ImageSet, name: str, strength: float, seed: int = 0) -> Iterator[Tensor]:
    """Yield the images in [0, 1] as `measure_robustness` perturbs them, 128 at a time."""
    change = perturbation(name).change
    generator = torch.Generator().manual_seed(seed)
    for batch in batches(images, CHUNK, device="cpu"):
        yield change(batch.images, strength, generator)


def _evaluate(
    models: Mapping[str, ImageClassifier], images: ImageSet, chunks: Iterator[Tensor], batch_size: int
) -> dict[str, Evaluation]:
    activations: dict[str, list[Tensor]] = {network: [] for network in models}
    for changed in chunks:
        for network, model in models.items():
            with inference(model) as device:
                for part in changed.split(batch_size):
                    activations[network].append(model(part.to(device)).activations.float().cpu())
    labels, group = images.labels.cpu(), images.group
    return {
        network: Evaluation(torch.cat(parts).clone(), labels, images.classes, group=group)
        for network, parts in activations.items()
    }
