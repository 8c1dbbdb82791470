"""`capsella robustness`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from capsella.cli.runs import load_runs
from capsella.cli.screen import show
from capsella.data import ImageSet, load_data, single_images
from capsella.errors import CapsellaError
from capsella.evaluation import PERTURBATIONS, measure_robustness
from capsella.explain.plots import robustness_figure, write_png
from capsella.files import write_json
from capsella.training import Run


@dataclass(frozen=True)
class RobustnessOptions:
    """Measure accuracy on changed test images, the same for every run.

    Writes curves, and the numbers as JSON and CSV.

    The numbers of a change are its strengths; 0 is always measured.

    A flag without numbers leaves its change out.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of runs with the same test images."""
    out: Path | None = None
    """Folder for the results; default: robustness/ in the run's folder, or beside the first of several runs."""
    rotation: tuple[float, ...] = PERTURBATIONS["rotation"].strengths
    """Flip with probability ½ each way, and turn by up to this many degrees."""
    translation: tuple[float, ...] = PERTURBATIONS["translation"].strengths
    """Move by up to this share of each side."""
    colour: tuple[float, ...] = PERTURBATIONS["colour"].strengths
    """Add up to this much to each channel, or to a grey image; pixels are from 0 to 1."""
    noise: tuple[float, ...] = PERTURBATIONS["noise"].strengths
    """Add Gaussian noise of this standard deviation."""
    flips: tuple[float, ...] = ()
    """Flip with this probability each way, without a rotation."""
    seed: int = 0
    """Seed of the changes."""
    batch_size: int = 128
    """Images at a time, at most 128."""


def run(arguments: list[str]) -> None:
    """Measure, print and write."""
    options = tyro.cli(RobustnessOptions, args=arguments, prog="capsella robustness")
    runs = load_runs(options.runs)
    data, images = _test_images(runs)
    result = measure_robustness(
        {name: trained.model for name, trained in runs.items()},
        images,
        {name: strengths for name in PERTURBATIONS if (strengths := getattr(options, name))},
        data=data,
        seed=options.seed,
        batch_size=options.batch_size,
        progress=True,
    )
    first = options.runs[0]
    out = options.out or (first if len(options.runs) == 1 else first.parent) / "robustness"
    write_json(out / "robustness.json", result.to_dict())
    result.write_csv(out / "robustness.csv")
    write_png(robustness_figure(result), out / "robustness.png")
    print(f"{len(images)} test images of {data}; 95 % intervals")
    show(*result.tables())
    print(f"written to {out / 'robustness'}.json, .csv and .png")


def _test_images(runs: dict[str, Run]) -> tuple[str, ImageSet]:
    """What the images are called, and the test images, which all runs must share."""
    (first, trained), *others = runs.items()
    splits = load_data(trained.recipe.data)
    images = single_images(splits.test, "tests of robustness")
    for name, other in others:
        if other.recipe.data == trained.recipe.data:
            continue
        theirs = single_images(load_data(other.recipe.data).test, "tests of robustness")
        same = theirs.classes == images.classes and theirs.images.shape == images.images.shape
        if not (same and torch.equal(theirs.images, images.images) and torch.equal(theirs.labels, images.labels)):
            raise CapsellaError(
                f"{first} and {name} must have the same test images to be compared, got "
                f"{_describe(images)} and {_describe(theirs)}: train both with the same data, size and split"
            )
    return splits.name, images


def _describe(images: ImageSet) -> str:
    height, width = images.image_size
    return f"{len(images)} of {height}×{width}×{images.channels} in {len(images.classes)} classes"
