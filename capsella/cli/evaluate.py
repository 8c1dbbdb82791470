"""`capsella evaluate`."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from capsella.cli.flags import parse, positional
from capsella.cli.screen import console, note, show
from capsella.errors import ArgumentError, CapsellaError, check_argument, pluralize
from capsella.files import read_json, write_json
from capsella.image_options import check_range

if TYPE_CHECKING:
    from capsella.data import LabelledImages
    from capsella.evaluation import Evaluation
    from capsella.training import Run


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
        is_place = self.data is not None and Path(self.data).exists()
        check_argument(self.split is None or not is_place, "be left out: all images are tested", split=self.split)
        is_test = self.split in (None, "test")
        check_argument(is_test or not self.selective, "come with the test split", selective=self.selective)
        check_argument(
            (is_test and self.data is None) or not self.ood, "come with the run's own test images", ood=self.ood
        )
        check_argument(not (self.crops and (self.selective or self.ood)), "come alone", crops=self.crops)
        for name in ("group", "range"):
            value = getattr(self, name)
            check_argument(value is None or self.data is not None, "come with --data", **{name: value})
        check_range(self.range)

    @property
    def file(self) -> Path:
        """The JSON file, named by what is tested unless --out is given."""
        if self.out is not None:
            return self.out
        place = None if self.data is None else Path(self.data).resolve()
        source = [] if place is None else [place.name if place.is_dir() else place.stem]
        parts = [*source, self.split or ("all" if source else "test")]
        parts += [f"pairs{self.test_pairs}"] if self.test_pairs is not None else []
        parts += [f"per-class{self.per_class}"] if self.per_class is not None else []
        parts += [name for name in ("crops", "selective", "ood", "group") if getattr(self, name)]
        parts += [f"range{self.range[0]:g}-{self.range[1]:g}"] if self.range is not None else []
        return self.runs[0] / f"{'-'.join(parts)}.json"


def run(arguments: list[str]) -> None:
    """Evaluate, print and write."""
    options = parse(Evaluate, arguments, "evaluate")
    if options.robustness or options.attack:
        _challenge(options)
    else:
        _evaluate(options)


def _evaluate(options: Evaluate) -> None:
    from capsella.data import single_images
    from capsella.evaluation import evaluate, evaluate_ood, load_ood_set
    from capsella.models import MultiCrop
    from capsella.report.figures import ood_figure, write_png
    from capsella.report.terminal import evaluation_table, ood_table, selective_table

    run = _opened(options)
    _check_fitted(options, run)
    images, about = _images(options, run)
    ood_sets = []
    if options.ood:  # a missing folder is an error before the evaluation
        own = single_images(images, "out-of-distribution detection")
        ood_sets = [load_ood_set(name, run.model, own) for name in dict.fromkeys(options.ood)]
    model = MultiCrop(run.model).eval() if options.crops else run.model
    evaluation = evaluate(model, images, options.batch_size, progress=True)
    values, tables = evaluation.to_dict() | about, [evaluation_table(evaluation)]
    drawn = []
    if options.selective:
        selective, picture = _selective(run, evaluation, options)
        values["selective"], drawn = selective.to_dict(), [picture]
        tables.append(selective_table(selective))
    if ood_sets:
        report = evaluate_ood(run.model, own, ood_sets, options.ood_false_positive_rate, options.batch_size)
        values["ood"] = report.to_dict()
        tables.append(ood_table(report))
        drawn.append(run.folder / "figures" / "ood.png")
        write_png(ood_figure(report), drawn[-1])
    if options.json:
        print(json.dumps(values, indent=2))
    else:
        show(*tables)
        print(*(f"drawn in {picture}" for picture in drawn), f"written to {options.file}", sep="\n")
    write_json(options.file, values)


def _opened(options: Evaluate) -> "Run":
    """Open the run, calibrated anew if asked for, and with broken images left out if asked for."""
    from capsella.training.trained import open_run

    run = open_run(options.runs[0])
    if options.calibrate:
        from capsella.training import calibrate_run

        calibrate_run(run.folder)
        run = open_run(run.folder)
    if options.skip_broken:
        data = replace(run.recipe.data, skip_broken=True)
        run = replace(run, recipe=replace(run.recipe, data=data))
    return run


def _check_fitted(options: Evaluate, run: "Run") -> None:
    """Check that what is asked for was fitted with the run.

    Raises:
        CapsellaError: it was not, or for another domain.
    """
    how = "it is on pairs" if run.recipe.data.is_paired else f"capsella evaluate {run.folder} --calibrate fits it"
    if run.adapted is not None and (options.selective or options.ood):
        raise CapsellaError(
            f"{run.folder} was adapted to {run.adapted['laboratory']}, where it has no validation images"
        )
    if options.selective and run.model.calibration is None:
        raise CapsellaError(f"selective: needs calibrated probabilities, and {run.folder} has none; {how}")
    if options.ood and run.model.ood_detector is None:
        raise CapsellaError(f"ood: no OOD check was fitted for {run.folder}; {how}")


def _images(options: Evaluate, run: "Run") -> "tuple[LabelledImages, dict[str, Any]]":
    """Return the images to test on, and what the JSON says about another domain."""
    from capsella.data import load_data
    from capsella.evaluation.domain import domain_images
    from capsella.training import RunFolder, load_run_splits
    from capsella.training.flags import with_values

    images: LabelledImages
    if options.data is not None and options.split is None and not run.recipe.data.is_paired:
        _check_file(options)
        images, about, lines = domain_images(run, options.data, options.per_class, options.group, options.range)
        console(stderr=options.json).print(*lines, sep="\n", markup=False, soft_wrap=True)
        return images, about
    data = run.recipe.data
    if options.data is not None:
        data = data.on(options.data)
    if options.test_pairs is not None:
        data = with_values(data, {"test_pairs": options.test_pairs})
    if options.per_class is not None:
        data = replace(data, test_per_class=None if options.per_class == "all" else options.per_class)
    own = options.data is None
    splits = load_run_splits(RunFolder(run.folder), data, skip_broken=True) if own else load_data(data)
    if splits.broken:
        note(f"left out {pluralize(len(splits.broken), 'broken image')}:", *splits.broken)
    images = splits.named()[options.split or "test"]
    for name in ("classes", "image_size", "channels"):
        ours, theirs = getattr(run.model, name), getattr(images, name)
        if ours != theirs:
            raise ArgumentError("data", f"have the {name} of the run, {ours}", theirs)
    return images, {}


def _check_file(options: Evaluate) -> None:
    """Raise `CapsellaError` instead of overwriting results of another domain, or by other groups."""
    if options.out is None and options.data is not None and options.file.exists():
        before = read_json(options.file).get("laboratory") or {}
        place, group = before.get("data", options.data), before.get("group")
        if Path(place).resolve() != Path(options.data).resolve() or options.group not in (None, group):
            groups = f" by the group {group}" if group else ""
            raise CapsellaError(f"{options.file} holds the results of {place}{groups}; choose another --out")


def _selective(run: "Run", evaluation: "Evaluation", options: Evaluate) -> "tuple[Any, Path]":
    """Apply thresholds from the run's own validation images to what was tested, and draw the curve."""
    from capsella.evaluation import evaluate, evaluate_selective
    from capsella.report.figures import risk_coverage_figure, write_png
    from capsella.training import load_splits

    validation = evaluate(run.model, load_splits(run, skip_broken=True).validation, options.batch_size)
    selective = evaluate_selective(run.model, validation, evaluation)
    picture = run.folder / "figures" / f"{options.file.stem}-risk_coverage.png"
    write_png(risk_coverage_figure(selective), picture)
    return selective, picture


def _challenge(options: Evaluate) -> None:
    """Measure robustness, or accuracy under attack."""
    from capsella.evaluation import AttackOptions
    from capsella.report.studies import study_attacks, study_robustness

    per_class = options.per_class if isinstance(options.per_class, int) else None
    if options.robustness:
        study = study_robustness(
            options.runs,
            options.perturbations,
            per_class=per_class,
            seed=options.seed,
            batch_size=options.batch_size,
            out=options.out,
        )
    else:
        asked: dict[str, Any] = {} if options.epsilons is None else {"epsilons": options.epsilons}
        study = study_attacks(
            options.runs,
            AttackOptions(steps=options.steps, restarts=options.restarts, seed=options.seed, **asked),
            per_class=20 if options.per_class is None else per_class,
            false_positive_rate=options.ood_false_positive_rate,
            out=options.out,
        )
    if options.json:
        print(json.dumps(study.values, indent=2))
    else:
        show(study.summary)
