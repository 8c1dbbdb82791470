"""`capsella attack`."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import tyro

from capsella.cli.runs import load_runs
from capsella.cli.screen import show
from capsella.data import ImageSet, load_data, single_images
from capsella.data.split.holdout import first_per_class
from capsella.errors import CapsellaError
from capsella.evaluation import AttackOptions, attack_networks, attack_notes, attack_table
from capsella.explain.plots import attack_figure, write_png
from capsella.files import write_json
from capsella.models.novelty.fitted import REFUSE, check_refuse
from capsella.training import Run


@dataclass(frozen=True)
class Attack:
    """Attack runs with FGSM, BIM and PGD, and capsules through their votes.

    An adaptive attack knows which images are refused, and makes others.

    With several runs, each also meets the images that fool the others.

    All runs must have been tested on the same images.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of runs."""
    attack: Annotated[AttackOptions, tyro.conf.arg(name="")] = field(default_factory=AttackOptions)
    refuse: float = REFUSE
    """The share of images like the training images that may be called not known. The second table counts how many of
    the attacks that succeed are then called so, too."""
    per_class: int | None = 20
    """Attack at most this many test images of each class; None attacks all."""
    json: bool = False
    """Print JSON instead of the table."""
    out: Path | None = None
    """Folder for attacks.json and attacks.png; default: the first run's folder."""

    def __post_init__(self) -> None:
        if self.per_class is not None and self.per_class < 1:
            raise ValueError(f"per_class: must be at least 1 or None, got {self.per_class}")
        check_refuse(self.refuse)


def run(arguments: list[str]) -> None:
    """Attack, print and draw."""
    options = tyro.cli(Attack, args=arguments, prog="capsella attack")
    runs = load_runs(options.runs)
    name, images = _test_images(runs, options.per_class)
    models = {name: run.model for name, run in runs.items()}
    results = attack_networks(models, images, options.attack, progress=True, refuse=options.refuse)
    values = {
        "data": name,
        "images": len(images),
        "options": {**asdict(options.attack), "refuse": options.refuse},
        "networks": {name: result.to_dict() for name, result in results.items()},
    }
    out = options.out or options.runs[0]
    write_json(out / "attacks.json", values)
    measured = [(name, result, curve) for name, result in results.items() for curve in result.curves]
    curves = {(name, curve.label): (result.clean, *curve.accuracy) for name, result, curve in measured}
    write_png(attack_figure((0.0, *options.attack.epsilons), curves), out / "attacks.png")
    if options.json:
        print(json.dumps(values, indent=2))
        return
    show(attack_table(results, options.attack))
    print(*attack_notes(results), f"written to {out / 'attacks.json'} and {out / 'attacks.png'}", sep="\n")


def _test_images(runs: dict[str, Run], per_class: int | None) -> tuple[str, ImageSet]:
    """The name of the first run's images, and its test images, at most so many a class.

    The others' must be the same, whatever flags or split file they come from, so that they are new to every run.
    """
    first, *others = runs
    splits = load_data(runs[first].recipe.data)
    test = single_images(splits.test, "attacks")
    for name in others:
        if runs[name].recipe.data == runs[first].recipe.data:
            continue
        theirs = single_images(load_data(runs[name].recipe.data).test, "attacks")
        if difference := _difference(test, theirs):
            raise CapsellaError(f"{name}: its test images must be those of {first}, {difference}")
    return splits.name, test if per_class is None else first_per_class(test, per_class, 0)


def _difference(first: ImageSet, other: ImageSet) -> str:
    """What tells two sets apart, in words; "" where they hold the same images of the same classes, in any order."""
    if first.classes != other.classes:
        return f"but the classes are {', '.join(first.classes)} there and {', '.join(other.classes)} here"
    if first.images.shape[1:] != other.images.shape[1:]:
        there, here = ("×".join(map(str, (*one.image_size, one.channels))) for one in (first, other))
        return f"but they are {there} there and {here} here"
    known = _digests(first)
    shared = (known & _digests(other)).total()
    if shared == known.total() == len(other):
        return ""
    return f"but of {len(first)} there and {len(other)} here {shared} are the same"


def _digests(images: ImageSet) -> Counter[tuple[bytes, int]]:
    """Pixels and label of each image, counted."""
    pixels = (blake2b(image.numpy().tobytes(), digest_size=16).digest() for image in images.images)
    return Counter(zip(pixels, images.labels.tolist(), strict=True))
