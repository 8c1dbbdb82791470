"""`capsella evaluate`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from capsella.cli.flags import parse, positional
from capsella.cli.screen import console, show
from capsella.errors import check_argument
from capsella.image_options import check_range


@dataclass(frozen=True, kw_only=True)
class EvaluateCommon:
    """Test a trained network: a table, and the same numbers as JSON.

    With --robustness or --attack several networks can be compared, which must
    have the same test images.
    """

    runs: Annotated[tuple[Path, ...], *positional("RUN…", "Runs, or a comparison's folder.")]
    data: str | None = None
    """Images of another domain, e.g. another laboratory: a folder, an .npz file or a named source. All of them are
    tested. Classes are matched by name; images of classes that the network does not know are left out."""
    group: str | None = None
    """With --data of a folder: a regular expression whose one capture group, found in the path, names the patient or
    slide, e.g. 'patient([0-9]+)'. Intervals are then over patients."""
    robustness: bool = False
    """Measure accuracy on rotated, moved, coloured and noisy test images instead."""
    attack: bool = False
    """Measure accuracy under adversarial attacks (FGSM, BIM, PGD, on votes, adaptive, transferred) instead."""
    routing: bool = False
    """Also measure how a capsule network routes: starved capsules, static couplings, parse trees, gradients."""
    selective: bool = False
    """Also show the error at each coverage, when the network abstains from uncertain images, and prediction sets."""
    ood: tuple[str, ...] = ()
    """Also show how well out-of-distribution images are detected: a source, a folder, `noise`, or `half` for test
    images whose right half is painted over."""
    per_class: int | Literal["all"] | None = None
    """Use at most this many test images per class, or all. Default: the recipe's number; with --attack 20."""
    skip_broken: bool = False
    """Leave out images that cannot be read, and list them."""
    json: bool = False
    """Print JSON instead of tables."""
    out: Path | None = None
    """The JSON file; with --robustness or --attack the folder. Default: in the run's folder."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(EvaluateCommon):
    """All flags."""

    split: Literal["test", "validation", "train"] | None = None
    """The split to test on. Default: test; with --data all images, unless a split of a named source is asked for."""
    range: tuple[float, float] | None = None
    """With --data: the values that become 0 and 255 in its files of more than 8 bits, e.g. 0 4095."""
    test_pairs: int | None = None
    """For a run on pairs: test on this many pairs."""
    crops: bool = False
    """Average over thirteen crops around the centre (Hinton et al. 2018), for networks that crop their images."""
    ood_false_positive_rate: float = 0.05
    """With --ood or --attack: false-positive rate of the OOD check."""
    calibrate: bool = False
    """First fit probabilities and the OOD check again, on the validation images."""
    batch_size: int = 128
    """Images at a time."""
    perturbations: tuple[str, ...] = ("rotation", "translation", "colour", "noise")
    """With --robustness: what is changed; also flips."""
    epsilons: tuple[float, ...] | None = None
    """With --attack: largest changes of a pixel in [0, 1], rising."""
    steps: int = 20
    """With --attack: steps of PGD and of the vote attack."""
    restarts: int = 3
    """With --attack: random starts of PGD and of the vote attack."""
    seed: int = 0
    """With --robustness or --attack: seed of the random changes."""

    def __post_init__(self) -> None:
        several = self.robustness or self.attack
        check_argument(bool(self.runs), "name a RUN", runs=self.runs)
        check_argument(not (self.robustness and self.attack), "come without --robustness", attack=self.attack)
        check_argument(several or len(self.runs) < 2, "be one without --robustness or --attack", runs=len(self.runs))
        check_range(self.range)


def run(arguments: list[str]) -> None:
    """Evaluate, print and write."""
    options = parse(Evaluate, arguments, "evaluate")

    from capsella.evaluation import AttackOptions
    from capsella.report.studies import EvaluateOptions, study_attacks, study_robustness, study_run

    per_class = options.per_class if isinstance(options.per_class, int) else None
    if options.robustness:
        how: dict[str, Any] = {"seed": options.seed, "batch_size": options.batch_size, "out": options.out}
        study = study_robustness(options.runs, options.perturbations, per_class=per_class, **how)
    elif options.attack:
        asked: dict[str, Any] = {} if options.epsilons is None else {"epsilons": options.epsilons}
        study = study_attacks(
            options.runs,
            AttackOptions(steps=options.steps, restarts=options.restarts, seed=options.seed, **asked),
            per_class=20 if options.per_class is None else per_class,
            false_positive_rate=options.ood_false_positive_rate,
            out=options.out,
        )
    else:
        study = study_run(
            options.runs[0],
            EvaluateOptions(
                data=options.data,
                group=options.group,
                split=options.split,
                range=options.range,
                per_class=options.per_class,
                test_pairs=options.test_pairs,
                crops=options.crops,
                routing=options.routing,
                selective=options.selective,
                ood=options.ood,
                ood_false_positive_rate=options.ood_false_positive_rate,
                batch_size=options.batch_size,
                skip_broken=options.skip_broken,
                calibrate=options.calibrate,
            ),
            options.out,
        )
    lines = console(stderr=options.json)
    lines.print(*study.lines, sep="\n", end="\n" if study.lines else "", markup=False, soft_wrap=True)
    if options.json:
        print(json.dumps(study.values, indent=2))
    else:
        show(study.summary)
