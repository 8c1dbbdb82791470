"""`capsella attack`."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from capsella.data import ImageSet, load_data, single_images
from capsella.data.split.holdout import first_per_class
from capsella.errors import CapsellaError
from capsella.evaluation import AttackOptions, attack_networks, attack_notes, attack_table
from capsella.explain.plots import attack_figure, write_png
from capsella.files import write_json
from capsella.training import Run, load_run


@dataclass(frozen=True)
class Attack:
    """Attack runs with FGSM, BIM and PGD, capsules through their votes too, and each with the images that fool another.

    Several runs must have been trained on the same images; the first one's test images are attacked.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of runs."""
    attack: Annotated[AttackOptions, tyro.conf.arg(name="")] = field(default_factory=AttackOptions)
    per_class: int | None = 20
    """Attack at most this many test images a class; None takes all."""
    json: bool = False
    """Print JSON instead of the table."""
    out: Path | None = None
    """Folder for attacks.json and attacks.png; default: the first run's."""

    def __post_init__(self) -> None:
        if self.per_class is not None and self.per_class < 1:
            raise ValueError(f"per_class: must be at least 1 or None, got {self.per_class}")


def run(arguments: list[str]) -> None:
    """Attack, print and draw."""
    options = tyro.cli(Attack, args=arguments, prog="capsella attack")
    if not options.runs:
        raise ValueError("runs: must name the folder of at least one run")
    runs = {name: load_run(folder) for name, folder in zip(_names(options.runs), options.runs, strict=True)}
    name, images = _test_images(runs, options.per_class)
    results = attack_networks({name: run.model for name, run in runs.items()}, images, options.attack, progress=True)
    values = {
        "data": name,
        "images": len(images),
        "options": asdict(options.attack),
        "networks": {name: result.to_dict() for name, result in results.items()},
    }
    out = options.out or options.runs[0]
    write_json(out / "attacks.json", values)
    curves = {
        (name, curve.label): (result.clean, *curve.accuracy)
        for name, result in results.items()
        for curve in result.curves
    }
    write_png(attack_figure((0.0, *options.attack.epsilons), curves), out / "attacks.png")
    if options.json:
        print(json.dumps(values, indent=2))
        return
    console = Console(highlight=False)
    console.print(attack_table(results, options.attack))
    for line in (*attack_notes(results), f"written to {out / 'attacks.json'} and {out / 'attacks.png'}"):
        console.print(line, soft_wrap=True, markup=False)


def _names(folders: tuple[Path, ...]) -> list[str]:
    """The folders' own names, or their whole paths where two are alike."""
    names = [folder.resolve().name for folder in folders]
    names = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise ValueError(f"runs: must each be named once, got {', '.join(names)}")
    return names


def _test_images(runs: dict[str, Run], per_class: int | None) -> tuple[str, ImageSet]:
    """The name of the first run's images, and its test images, at most so many a class."""
    first = next(iter(runs.values()))
    for name, run in runs.items():
        if run.recipe.data != first.recipe.data:
            raise CapsellaError(
                f"{name}: must have been trained on the images of {first.folder.name}, with the same options of data, "
                "for the test images to be new to both"
            )
    splits = load_data(first.recipe.data)
    test = single_images(splits.test, "attacks")
    return splits.name, test if per_class is None else first_per_class(test, per_class, 0)
