"""`capsella adapt`."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table
from rich.text import Text

from capsella.cli.laboratory import copies_seen, laboratory_of, own_images
from capsella.cli.runs import open_run
from capsella.cli.screen import console, show
from capsella.data import DomainData, ImageSet, LabelledImages, Splits, draw_labelled, single_images
from capsella.errors import CapsellaError, check_minimum, pluralize
from capsella.evaluation import Evaluation, Interval, difference_interval, evaluate, points
from capsella.image_options import check_range
from capsella.models import ImageClassifier
from capsella.report import evaluation_warnings
from capsella.training import (
    AdaptOptions,
    Judged,
    Run,
    RunFolder,
    adapt_model,
    calibrate_adapted,
    cross_fitted,
    save_adapted,
)

Pair = tuple[Evaluation, Evaluation]


@dataclass(frozen=True)
class Adapt:
    """Adapt a run to another laboratory with a few labelled images a class.

    All other images there test it, and choose nothing.

    The result is a run folder: capsella predict, export and explain take it.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run; it stays as it is."""
    images: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")]
    """The other laboratory: a folder with one sub-folder a class, an .npz file, or a named source. Classes are matched
    by name; images of others are left out."""
    out: Path
    """Folder of the adapted run."""
    per_class: int = 10
    """Labelled images of each class, drawn by --seed; at most half of those that there are. All others are tested."""
    group: str | None = None
    """A regular expression whose one capture group, found in the path, names the patient or slide, as
    'patient([0-9]+)'; of an .npz file: an array of integers. No patient is then both learned from and tested, and at
    most one image of each is labelled."""
    range: tuple[float, float] | None = None
    """The values that become 0 and 255 in files of more than 8 bits, as `0 4095` of a camera of 12 bits; default: what
    the files state, or else the percentiles 0.1 and 99.9 of their values."""
    skip_broken: bool = False
    """Leave out images that cannot be read, or show no cell where cells are cut out, instead of stopping at the
    first."""
    replay: bool = False
    """Half of the images of each step are the run's own training images, so that it does not forget them."""
    adapt: Annotated[AdaptOptions, tyro.conf.arg(name="")] = AdaptOptions()

    def __post_init__(self) -> None:
        check_minimum(1, per_class=self.per_class)
        check_range(self.range)


def run(arguments: list[str]) -> None:
    """Adapt, test, save and print."""
    options = tyro.cli(Adapt, args=arguments, prog="capsella adapt")
    trained, out = open_run(options.run), console()
    _check(options, trained)
    found = laboratory_of(trained, options.images, options.group, options.range, skip_broken=options.skip_broken)
    labelled, rest, not_to_test = draw_labelled(found.images, options.per_class, options.adapt.seed)
    own, notes = own_images(trained)
    if own is not None:
        notes += copies_seen(own, found.images)[1]
    each = ", ".join(f"{name} {count}" for name, count in labelled.counts().items() if count)
    drawn = f"{found.name}: {pluralize(len(labelled), 'labelled image')} ({each}), {len(rest)} others tested"
    out.print(*found.lines(), *notes, drawn, sep="\n", markup=False, soft_wrap=True)

    network, judged = _adapted(trained, labelled, options, own)
    network.cut = None if network.cut is None else replace(network.cut, radius=found.cell_radius)
    network.value_range = found.value_range or network.value_range
    places: dict[str, LabelledImages] = {found.name: rest}
    if own is not None:
        places["own laboratory"] = own.test
    pairs = {name: (evaluate(trained.model, one), evaluate(network, one)) for name, one in places.items()}
    gain = _gain(pairs[found.name])
    about = {
        # Found from any folder; a named source is no place.
        "laboratory": str(Path(options.images).resolve()) if Path(options.images).exists() else options.images,
        "skip_broken": options.skip_broken,
        "group": options.group,
        "run": str(options.run.resolve()),
        "options": asdict(options.adapt) | {"per_class": options.per_class, "replay": options.replay},
        "labelled": labelled.counts(),
        "cross_fitted_error_percent": None if judged is None else judged.error,
        "tests": {name: {"before": old.to_dict(), "after": new.to_dict()} for name, (old, new) in pairs.items()},
        "gain": gain.to_dict(),
        "not_to_test": not_to_test,
        "value_range": found.value_range,
        "cell_radius": found.cell_radius,
    }
    save_adapted(trained, network, options.out, about)
    show(_table(pairs))
    out.print(*_sentences(pairs[found.name], gain, judged, options.out), sep="\n", markup=False, soft_wrap=True)


def _check(options: Adapt, trained: Run) -> None:
    """Raises:
    CapsellaError: a run is at `out`, or it lies among the images; the run was adapted before.
    """
    RunFolder(options.out).check_unused()
    DomainData((options.images,)).check_outside(options.out)
    if trained.adapted is not None:
        raise CapsellaError(f"{options.run} was adapted before; adapt the run that it was made from")


def _adapted(
    trained: Run, labelled: ImageSet, options: Adapt, own: Splits | None
) -> tuple[ImageClassifier, Judged | None]:
    """The network, calibrated where there are two labelled images of each class."""
    if options.replay and own is None:
        raise CapsellaError("replay: needs the images that the run was trained on, and they are not at hand")
    replay = single_images(own.train, "replayed images") if options.replay and own is not None else None
    network = adapt_model(trained.model, trained.recipe, labelled, options.adapt, replay)
    judged = cross_fitted(trained.model, trained.recipe, labelled, options.adapt, replay)
    if judged is not None:
        calibrate_adapted(network, judged)
    return network, judged


def _gain(pair: Pair) -> Interval:
    """Of the accuracy, over the images of one laboratory."""
    before, after = (one.correct.numpy()[None] for one in pair)
    return difference_interval(after, before, pair[0].groups)


def _table(pairs: dict[str, Pair]) -> Table:
    table = Table("tested on", "")
    table.add_column("before (95 %)", justify="right")
    table.add_column("after (95 %)", justify="right")
    for name, pair in pairs.items():
        table.add_row(Text(name), "error %", *(_share(one.error, one.error_interval) for one in pair))
        balanced = (_share(one.balanced_accuracy, one.balanced_accuracy_interval) for one in pair)
        table.add_row("", "balanced acc. %", *balanced)
    return table


def _share(percent: float, interval: tuple[float, float]) -> str:
    return f"{percent:.1f} ({interval[0]:.1f}–{interval[1]:.1f})"


def _sentences(pair: Pair, gain: Interval, judged: Judged | None, out: Path) -> list[str]:
    before, after = pair
    sentences = [f"WARNING: {warning}" for warning in evaluation_warnings(after)]
    over = "test images" if after.groups is None else "groups of test images"
    sentences.append(
        f"errors on {len(after.labels)} images: {before.errors} before, {after.errors} after; accuracy "
        f"{points(gain.estimate)} points (95 % interval {points(gain.low)} to {points(gain.high)}, over {over} alone: "
        "other labelled images would give another number)"
    )
    if judged is None:
        sentences.append("not calibrated: that takes two labelled images of each class; predict gives no probability")
    else:
        sentences.append(f"error of the labelled images, each by a network adapted without it: {judged.error:.1f} %")
    return [*sentences, f"run     {out}"]
