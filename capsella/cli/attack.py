"""`capsella attack`."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from capsella.cli.runs import load_runs, shared_test_images
from capsella.cli.screen import show
from capsella.data.split.holdout import first_per_class
from capsella.errors import ArgumentError
from capsella.evaluation import AttackOptions, attack_networks
from capsella.files import write_json
from capsella.report.figures import attack_figure, write_png
from capsella.report.prose import attack_notes
from capsella.report.terminal import attack_table
from capsella.uncertainty import FALSE_POSITIVE_RATE, check_false_positive_rate


@dataclass(frozen=True)
class Attack:
    """Attack runs with FGSM, BIM and PGD, and capsules through their votes.

    An adaptive attack also evades the OOD check.

    With several runs, each also meets the images that fool the others.

    All runs must have been tested on the same images.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of runs."""
    attack: Annotated[AttackOptions, tyro.conf.arg(name="")] = field(default_factory=AttackOptions)
    ood_false_positive_rate: float = FALSE_POSITIVE_RATE
    """False-positive rate of the OOD check. The second table counts the successful attacks that it flags."""
    per_class: int | None = 20
    """Attack at most this many test images of each class; None attacks all."""
    json: bool = False
    """Print JSON instead of the table."""
    out: Path | None = None
    """Folder for attacks.json and attacks.png; default: the first run's folder."""

    def __post_init__(self) -> None:
        if self.per_class is not None and self.per_class < 1:
            raise ArgumentError("per_class", "be at least 1 or None", self.per_class)
        check_false_positive_rate(self.ood_false_positive_rate)


def run(arguments: list[str]) -> None:
    """Attack, print and draw."""
    options = tyro.cli(Attack, args=arguments, prog="capsella attack")
    runs = load_runs(options.runs)
    name, images = shared_test_images(runs, "attacks")
    if options.per_class is not None:
        images = first_per_class(images, options.per_class, 0)
    models = {name: run.model for name, run in runs.items()}
    rate = options.ood_false_positive_rate
    results = attack_networks(models, images, options.attack, progress=True, false_positive_rate=rate)
    values = {
        "data": name,
        "images": len(images),
        "options": {**asdict(options.attack), "false_positive_rate": rate},
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
