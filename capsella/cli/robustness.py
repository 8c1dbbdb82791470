"""`capsella robustness`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from capsella.cli.runs import load_runs, shared_test_images
from capsella.cli.screen import show
from capsella.evaluation import PERTURBATIONS, measure_robustness
from capsella.files import write_json
from capsella.report.figures import robustness_figure, write_png
from capsella.report.terminal import robustness_tables


@dataclass(frozen=True)
class RobustnessOptions:
    """Measure accuracy on changed test images, the same for every run.

    Writes curves, and the numbers as JSON and CSV.

    The numbers of a change are its strengths; 0 is always measured.

    A flag without numbers leaves its change out.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of runs with the same test images, in any order."""
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
    data, images = shared_test_images(runs, "tests of robustness")
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
    show(*robustness_tables(result))
    print(f"written to {out / 'robustness'}.json, .csv and .png")
