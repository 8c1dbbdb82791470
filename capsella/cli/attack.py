"""`capsella attack`."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from capsella.cli.runs import load_runs, shared_test_images
from capsella.cli.screen import show
from capsella.data.split.holdout import first_per_class
from capsella.errors import ArgumentError
from capsella.evaluation import AttackOptions, attack_networks, attack_notes, attack_table
from capsella.files import write_json
from capsella.models import ImageClassifier
from capsella.models.novelty.fitted import REFUSE, check_refuse, images_to_refuse
from capsella.report.figures import attack_figure, write_png


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
            raise ArgumentError("per_class", "be at least 1 or None", self.per_class)
        check_refuse(self.refuse)


def run(arguments: list[str]) -> None:
    """Attack, print and draw."""
    options = tyro.cli(Attack, args=arguments, prog="capsella attack")
    runs = load_runs(options.runs)
    name, images = shared_test_images(runs, "attacks")
    if options.per_class is not None:
        images = first_per_class(images, options.per_class, 0)
    models = {name: run.model for name, run in runs.items()}
    _tell_where_nothing_is_refused(models, options.refuse)
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


def _tell_where_nothing_is_refused(models: Mapping[str, ImageClassifier], refuse: float) -> None:
    for name, model in models.items():
        if model.novelty is not None and not model.novelty.can_refuse(refuse):
            needed = f"that takes {images_to_refuse(refuse)} validation images, and it has {model.novelty.images}"
            print(f"note: {name}: what is not known is not counted: {needed}", file=sys.stderr)
