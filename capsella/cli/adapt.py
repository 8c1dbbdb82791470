"""`capsella adapt`."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsella.cli.flags import Group, parse, positional
from capsella.cli.networks import open_run
from capsella.cli.screen import console, show
from capsella.errors import CapsellaError, check_minimum, pluralize
from capsella.image_options import check_range
from capsella.training.config import AdaptOptions

if TYPE_CHECKING:
    from rich.table import Table

    from capsella.data import ImageSet, Splits
    from capsella.evaluation import Evaluation, Interval
    from capsella.models import ImageClassifier
    from capsella.training import HeldOutPredictions, Run


@dataclass(frozen=True, kw_only=True)
class Adapt:
    """Adapt a trained network to another domain with a few labelled images.

    All other images of that domain test it, and choose nothing. The result is a
    run folder, for capsella predict, export and explore.
    """

    run: Annotated[Path, *positional("RUN", "A run, or a comparison's folder; it stays as it is.")]
    images: Annotated[str, *positional("IMAGES", "The other domain: a folder, an .npz file or a named source.")]
    out: Path
    """Folder of the adapted run."""
    per_class: int = 10
    """Labelled images per class, drawn by --seed; at most half of the available ones. All others are tested."""
    group: str | None = None
    """A regular expression whose one capture group, found in the path, names the patient or slide, e.g.
    'patient([0-9]+)'; for an .npz file an array of integers. No patient is both learned from and tested."""
    range: tuple[float, float] | None = None
    """The values that become 0 and 255 in files of more than 8 bits. Default: what the files state, or else the
    percentiles 0.1 and 99.9 of their values."""
    skip_broken: bool = False
    """Leave out images that cannot be read, or show no cell if cells are cropped."""
    replay: bool = False
    """Half of the images of each step are the run's training images, so that it does not forget them."""
    how: Annotated[AdaptOptions, Group] = AdaptOptions()

    def __post_init__(self) -> None:
        check_minimum(1, per_class=self.per_class)
        check_range(self.range)


def run(arguments: list[str]) -> None:
    """Adapt, test, save and print."""
    options = parse(Adapt, arguments, "adapt")

    from capsella.data import data_from, draw_labelled
    from capsella.evaluation import evaluate
    from capsella.evaluation.domain import copies_seen, laboratory_of, own_images
    from capsella.training import RunFolder, save_adapted

    run, out = open_run(options.run), console()
    RunFolder(options.out).check_unused()
    data_from(options.images).check_outside(options.out)
    if run.adapted is not None:
        raise CapsellaError(f"{run.folder} was adapted before; adapt the run that it was made from")
    domain = laboratory_of(run, options.images, options.group, options.range, skip_broken=options.skip_broken)
    labelled, rest, not_to_test = draw_labelled(domain.images, options.per_class, options.how.seed)
    own, notes = own_images(run)
    if own is not None:
        notes += copies_seen(own, domain.images)[1]
    counts = ", ".join(f"{name} {count}" for name, count in labelled.counts().items() if count)
    drawn = f"{domain.name}: {pluralize(len(labelled), 'labelled image')} ({counts}), {len(rest)} others tested"
    out.print(*domain.lines(), *notes, drawn, sep="\n", markup=False, soft_wrap=True)

    network, judged = _adapted(run, labelled, options, own)
    network.cut = None if network.cut is None else replace(network.cut, radius=domain.cell_radius)
    network.value_range = domain.value_range or network.value_range
    tests = {domain.name: rest} | ({} if own is None else {"own domain": own.test})
    pairs = {name: (evaluate(run.model, images), evaluate(network, images)) for name, images in tests.items()}
    gain = _gain(*pairs[domain.name])
    about = {
        # A folder is found from anywhere; a named source is no place.
        "laboratory": str(Path(options.images).resolve()) if Path(options.images).exists() else options.images,
        "skip_broken": options.skip_broken,
        "group": options.group,
        "run": str(run.folder.resolve()),
        "options": asdict(options.how) | {"per_class": options.per_class, "replay": options.replay},
        "labelled": labelled.counts(),
        "cross_fitted_error_percent": None if judged is None else judged.error,
        "tests": {name: {"before": old.to_dict(), "after": new.to_dict()} for name, (old, new) in pairs.items()},
        "gain": gain.to_dict(),
        "not_to_test": not_to_test,
        "value_range": domain.value_range,
        "cell_radius": domain.cell_radius,
    }
    save_adapted(run, network, options.out, about)
    show(_table(pairs))
    out.print(*_sentences(*pairs[domain.name], gain, judged, options.out), sep="\n", markup=False, soft_wrap=True)


def _adapted(
    run: "Run", labelled: "ImageSet", options: Adapt, own: "Splits | None"
) -> "tuple[ImageClassifier, HeldOutPredictions | None]":
    """Adapt the network, and calibrate it if there are two labelled images per class."""
    from capsella.data import single_images
    from capsella.training import adapt_model, calibrate_adapted, predict_held_out

    if options.replay and own is None:
        raise CapsellaError("replay: the images that the run was trained on are not available")
    replay = single_images(own.train, "replayed images") if options.replay and own is not None else None
    network = adapt_model(run.model, run.recipe, labelled, options.how, replay)
    judged = predict_held_out(run.model, run.recipe, labelled, options.how, replay)
    if judged is not None:
        calibrate_adapted(network, judged)
    return network, judged


def _gain(before: "Evaluation", after: "Evaluation") -> "Interval":
    """Return the gain in accuracy, with its interval over the images of the domain."""
    from capsella.evaluation import difference_interval

    return difference_interval(after.correct.numpy()[None], before.correct.numpy()[None], before.groups)


def _table(pairs: "dict[str, tuple[Evaluation, Evaluation]]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table("tested on", "")
    table.add_column("before (95 %)", justify="right")
    table.add_column("after (95 %)", justify="right")
    for name, pair in pairs.items():
        table.add_row(Text(name), "error %", *(_percent(test.error, test.error_interval) for test in pair))
        balanced = (_percent(test.balanced_accuracy, test.balanced_accuracy_interval) for test in pair)
        table.add_row("", "balanced acc. %", *balanced)
    return table


def _percent(percent: float, interval: tuple[float, float]) -> str:
    return f"{percent:.1f} ({interval[0]:.1f}–{interval[1]:.1f})"


def _sentences(
    before: "Evaluation", after: "Evaluation", gain: "Interval", judged: "HeldOutPredictions | None", out: Path
) -> list[str]:
    from capsella.evaluation import points
    from capsella.report import evaluation_warnings

    over = "test images" if after.groups is None else "groups of test images"
    calibration = "not calibrated, which needs two labelled images per class: predict gives no probabilities"
    if judged is not None:
        calibration = f"error on the labelled images, each by a network adapted without it: {judged.error:.1f} %"
    return [
        *(f"WARNING: {warning}" for warning in evaluation_warnings(after)),
        f"errors on {len(after.labels)} images: {before.errors} before, {after.errors} after; gain in accuracy "
        f"{points(gain.estimate)} points (95 % interval {points(gain.low)} to {points(gain.high)}, over {over} only; "
        "other labelled images would give another number)",
        calibration,
        f"run     {out}",
    ]
