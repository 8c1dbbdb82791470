"""Robustness and attacks of one run or several, measured and written to a folder."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.text import Text

from capsella.data import ImageSet
from capsella.data.holdout import first_per_class
from capsella.evaluation import AttackOptions, attack_networks, measure_robustness
from capsella.evaluation.robustness import perturbation
from capsella.files import write_json
from capsella.models import ImageClassifier
from capsella.report.figures import attack_figure, robustness_figure, write_png
from capsella.report.prose import attack_notes
from capsella.report.terminal import attack_table, robustness_tables
from capsella.training.trained import open_runs, shared_test_images


class Study(NamedTuple):
    """Values ready for JSON, and the same for a terminal."""

    values: dict[str, Any]
    summary: Group


def study_robustness(
    folders: Sequence[Path],
    perturbations: Sequence[str],
    *,
    per_class: int | None = None,
    seed: int = 0,
    batch_size: int = 128,
    out: Path | None = None,
) -> Study:
    """Measure the accuracy of runs on changed test images, and write it as JSON, CSV and a picture.

    Args:
        folders: runs with the same test images.
        perturbations: how images are changed, e.g. "rotation".
        per_class: number of test images per class; None uses all.
        seed: of the random changes.
        batch_size: images at a time.
        out: folder of the files. Default: robustness in the first run.

    Raises:
        CapsellaError: runs with other test images.
    """
    strengths = {name: perturbation(name).strengths for name in perturbations}
    models, data, images = _open(folders, "tests of robustness", per_class)
    result = measure_robustness(models, images, strengths, data=data, seed=seed, batch_size=batch_size, progress=True)
    out = out or folders[0] / "robustness"
    write_json(out / "robustness.json", result.to_dict())
    result.write_csv(out / "robustness.csv")
    write_png(robustness_figure(result), out / "robustness.png")
    head = Text(f"{len(images)} test images of {data}; 95 % intervals")
    written = Text(f"written to {out / 'robustness'}.json, .csv and .png")
    return Study(result.to_dict(), Group(head, *robustness_tables(result), written))


def study_attacks(
    folders: Sequence[Path],
    options: AttackOptions,
    *,
    per_class: int | None = 20,
    false_positive_rate: float = 0.05,
    out: Path | None = None,
) -> Study:
    """Measure the accuracy of runs under adversarial attacks, and write it as JSON and a picture.

    Args:
        folders: runs with the same test images.
        options: strengths of the attacks.
        per_class: number of test images per class; None uses all.
        false_positive_rate: of the OOD check, which may flag attacks.
        out: folder of the files. Default: attacks in the first run.

    Raises:
        CapsellaError: runs with other test images.
    """
    models, data, images = _open(folders, "attacks", per_class)
    results = attack_networks(models, images, options, progress=True, false_positive_rate=false_positive_rate)
    values = {
        "data": data,
        "images": len(images),
        "options": {**asdict(options), "ood_false_positive_rate": false_positive_rate},
        "networks": {name: result.to_dict() for name, result in results.items()},
    }
    out = out or folders[0] / "attacks"
    write_json(out / "attacks.json", values)
    measured = [(name, result, curve) for name, result in results.items() for curve in result.curves]
    curves = {(name, curve.label): (result.clean, *curve.accuracy) for name, result, curve in measured}
    write_png(attack_figure((0.0, *options.epsilons), curves), out / "attacks.png")
    written = f"written to {out / 'attacks.json'} and {out / 'attacks.png'}"
    return Study(values, Group(attack_table(results, options), *map(Text, (*attack_notes(results), written))))


def _open(
    folders: Sequence[Path], purpose: str, per_class: int | None
) -> tuple[dict[str, ImageClassifier], str, ImageSet]:
    """Return the networks by name, and the name and images of their test set."""
    runs = open_runs(folders)
    data, images = shared_test_images(runs, purpose)
    if per_class is not None:
        images = first_per_class(images, per_class, 0)
    return {name: run.model for name, run in runs.items()}, data, images
