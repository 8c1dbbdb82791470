"""Does EM training stay stable? The same small matrix CapsNet, weights and batches, with our routing and a plain port.

`python -m benchmarks.stability --images-per-class 100` writes stability.csv, stability.json and stability.png.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from benchmarks.plain import PlainEMRouting
from capsella.data import ImageSet, NamedData, load_data
from capsella.environment import environment
from capsella.files import write_json, write_whole
from capsella.losses import LossOptions, spread_loss
from capsella.models import create_model
from capsella.routing import EMRouting, Routing

COLOURS = {"capsella": "#1f6f9f", "plain": "#c2571a"}


@dataclass(frozen=True)
class Study:
    """Train twice and compare."""

    out: Path
    """Folder for the CSV, JSON and PNG."""
    data: Literal["toys", "smallnorb-jpeg", "digits"] = "toys"
    """Images, in grey."""
    size: int = 32
    """Resize them to this many pixels a side."""
    images_per_class: int = 100
    """Training images a class; fewer make a tiny set."""
    steps: int = 2000
    """Training steps of each of the two."""
    batch: int = 16
    """Images a step."""
    learning_rate: float = 3e-3
    """Of Adam."""
    gradient_clip: float | None = None
    """Largest norm of the whole gradient; longer ones are shortened to it."""
    seed: int = 0
    """Of the weights and of the order of the images."""
    log_every: int = 10
    """Steps a logged point; its loss and accuracy are means over them."""
    competition: Literal["all", "types"] = "all"
    """Who competes for a child."""
    epsilon: float = 0.0
    """What the plain port adds to its denominators, variances and logarithms; public ports have 1e-9 to 1e-4."""


class Summary(NamedTuple):
    """What became of one training; steps are counted from 1."""

    steps: int
    not_finite_at: int | None
    spikes_to_chance_at: list[int]
    last_accuracy: float
    best_accuracy: float


class Point(NamedTuple):
    """Means over `log_every` steps of one training, up to `step`; norms are the largest."""

    routing: str
    step: int
    loss: float
    accuracy: float
    gradient_norm: float


def train(study: Study, name: str, routing: Routing, images: ImageSet) -> Iterator[Point]:
    """Train the network and yield points; ends after the first step that is not finite."""
    torch.manual_seed(study.seed)
    model = create_model(
        "hinton2018_matrix_capsnet_small",
        image_size=(study.size, study.size),
        channels=1,
        classes=images.classes,
        routing=routing,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=study.learning_rate)
    schedule, taken = LossOptions(name="spread"), list[tuple[float, float, float]]()
    for step, chosen in enumerate(_order(len(images), study), start=1):
        labels = images.labels[chosen]
        activations = model(images.images[chosen].float() / 255).activations
        loss = spread_loss(activations, labels, schedule.spread_at(step - 1, study.steps))
        optimizer.zero_grad()
        loss.backward()
        clip = math.inf if study.gradient_clip is None else study.gradient_clip
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        taken.append((loss.item(), float((activations.argmax(1) == labels).float().mean()), float(norm)))
        finite = all(map(math.isfinite, taken[-1]))
        if len(taken) == study.log_every or not finite or step == study.steps:
            losses, accuracies, norms = zip(*taken, strict=True)
            largest = max(norms) if finite else norms[-1]
            yield Point(name, step, sum(losses) / len(taken), sum(accuracies) / len(taken), largest)
            taken.clear()
        if not finite:
            return


def _order(images: int, study: Study) -> Iterator[Tensor]:
    """Indices of each step's batch: every epoch in an order of its own, the same for both trainings."""
    generator = torch.Generator().manual_seed(study.seed)
    size, done = min(study.batch, images), 0
    while True:
        for chosen in torch.randperm(images, generator=generator).split(size):
            if len(chosen) == size:
                if done == study.steps:
                    return
                done += 1
                yield chosen


def spikes(points: list[Point], classes: int, images: int) -> list[int]:
    """Steps at which a training that had learnt was back at chance.

    Learnt: an earlier point's accuracy was halfway from chance to 1. At chance: within two standard errors, for
    `images` a point, above 1/classes.
    """
    chance = 1 / classes
    limit = chance + 2 * math.sqrt(chance * (1 - chance) / images)
    best, found = 0.0, []
    for point in points:
        if best >= (1 + chance) / 2 and point.accuracy <= limit:
            found.append(point.step)
        best = max(best, point.accuracy)
    return found


def not_finite(points: list[Point]) -> int | None:
    """The step at which a loss or gradient was no finite number, or None."""
    return next((p.step for p in points if not math.isfinite(p.loss) or not math.isfinite(p.gradient_norm)), None)


def summarise(points: list[Point], study: Study, images: ImageSet) -> Summary:
    """Of one training so far."""
    per_point = study.log_every * min(study.batch, len(images))
    return Summary(
        steps=points[-1].step,
        not_finite_at=not_finite(points),
        spikes_to_chance_at=spikes(points, len(images.classes), per_point),
        last_accuracy=points[-1].accuracy,
        best_accuracy=max(point.accuracy for point in points),
    )


def run(study: Study, console: Console) -> dict[str, Summary]:
    """Train both; the three files are written anew with every tenth point."""
    options = NamedData(study.data, size=study.size, channels=1, per_class=study.images_per_class)
    images = load_data(options).train
    if not isinstance(images, ImageSet):
        raise ValueError(f"data: must be a source of single images, got pairs: {study.data}")
    routings: dict[str, Routing] = {
        "capsella": EMRouting(competition=study.competition),
        "plain": PlainEMRouting(competition=study.competition, epsilon=study.epsilon),
    }
    curves: dict[str, list[Point]] = {}
    summaries: dict[str, Summary] = {}
    for name, routing in routings.items():
        curves[name] = []
        for point in train(study, name, routing, images):
            curves[name].append(point)
            summaries[name] = summarise(curves[name], study, images)
            if len(curves[name]) % 10 == 0:
                write(study, curves, summaries, len(images.classes))
                console.print(f"{name}: step {point.step}, loss {point.loss:.4f}, accuracy {point.accuracy:.3f}")
        write(study, curves, summaries, len(images.classes))
        console.print(f"{name}: {summaries[name]}", markup=False, soft_wrap=True)
    return summaries


def write(study: Study, curves: dict[str, list[Point]], summaries: dict[str, Summary], classes: int) -> None:
    """stability.csv, stability.json and stability.png."""

    def write_csv(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(Point._fields)
            writer.writerows(point for curve in curves.values() for point in curve)

    write_whole(study.out / "stability.csv", write_csv)
    options = {key: value for key, value in asdict(study).items() if key != "out"}
    trainings = {name: summary._asdict() for name, summary in summaries.items()}
    document = {"environment": environment(), "study": options, "classes": classes, "trainings": trainings}
    write_json(study.out / "stability.json", document)
    drawn = figure(curves, summaries, classes)
    write_whole(study.out / "stability.png", lambda path: drawn.savefig(path, format="png", dpi=110))


def figure(curves: dict[str, list[Point]], summaries: dict[str, Summary], classes: int) -> Figure:
    """Loss above accuracy. A dot marks a spike to chance, a cross the step where numbers stopped being finite."""
    drawn = Figure(figsize=(8, 6), layout="constrained")
    panels = drawn.subplots(2, sharex=True)
    for panel, field in zip(panels, ("loss", "accuracy"), strict=True):
        for name, points in curves.items():
            at = {point.step: getattr(point, field) for point in points}
            panel.plot(list(at), list(at.values()), color=COLOURS[name], label=name, linewidth=1)
            dips = summaries[name].spikes_to_chance_at
            panel.plot(dips, [at[step] for step in dips], "o", color=COLOURS[name])
            if (last := summaries[name].not_finite_at) is not None:
                panel.axvline(last, color=COLOURS[name], linestyle=":")
                panel.plot([last], [0], "x", color=COLOURS[name], markersize=10, clip_on=False)
        panel.set_ylabel(f"training {field}")
    panels[1].axhline(1 / classes, color="#777777", linestyle="--", linewidth=0.8, label="chance")
    panels[1].set(xlabel="step", ylim=(0, 1.02))
    panels[1].legend()
    return drawn


if __name__ == "__main__":
    run(tyro.cli(Study, prog="benchmarks stability"), Console(highlight=False))
