"""Adapt a run to another domain with a few labelled images, and test it on all others."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from capsella.data import data_from, draw_labelled
from capsella.data.options import is_table
from capsella.errors import CapsellaError, pluralize
from capsella.evaluation.domain import copies_seen, domain_for, own_images
from capsella.evaluation.metrics import Evaluation, evaluate
from capsella.evaluation.statistics import Interval, difference_interval
from capsella.image_options import ValueRange
from capsella.training import RunFolder, adapt_model, calibrate_adapted, predict_held_out, save_adapted
from capsella.training.adapt import HeldOutPredictions
from capsella.training.config import AdaptOptions
from capsella.training.run import Run


@dataclass(frozen=True)
class Adaptation:
    """The test results of a network before and after its adaptation.

    Attributes:
        folder: folder of the adapted run.
        tests: evaluations before and after, by name of the test images; the domain's come first.
        gain: gain in accuracy on the domain, with an interval over the test images.
        held_out: predictions for the labelled images, each by a network adapted without it; None if a class has a
            single image.
    """

    folder: Path
    tests: dict[str, tuple[Evaluation, Evaluation]]
    gain: Interval
    held_out: HeldOutPredictions | None


def adapt_run(
    run: Run,
    domain: str,
    out: Path,
    options: AdaptOptions = AdaptOptions(),
    *,
    group: str | None = None,
    value_range: ValueRange | None = None,
    skip_broken: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> Adaptation:
    """Adapt a run with a few labelled images per class, test it on all others, and save it as a run.

    Args:
        run: the trained run, which is not changed.
        domain: a folder, an .npz file or a named source.
        out: folder of the adapted run.
        options: which weights are adapted, with how many labelled images, and how.
        group: as for `read_domain`. No group is both learned from and tested.
        value_range: the values that become 0 and 255 in files of more than 8 bits.
        skip_broken: leave out images that cannot be read, or show no cell if cells are cropped.
        say: called with each line about the images, before the training.

    Raises:
        CapsellaError: the run was adapted before, the images cannot be used, or `out` holds a run.
    """
    RunFolder(out).check_unused()
    data_from(domain).check_outside(out)
    if run.adapted is not None:
        raise CapsellaError(f"{run.folder} was adapted before; adapt the run that it was made from")
    found = domain_for(run, domain, group, value_range, skip_broken=skip_broken)
    labelled, rest, not_to_test = draw_labelled(found.images, options.per_class, options.seed)
    own, notes = own_images(run)
    if own is not None:
        notes += copies_seen(own, found.images)[1]
    counts = ", ".join(f"{name} {count}" for name, count in labelled.counts().items() if count)
    drawn = f"{found.name}: {pluralize(len(labelled), 'labelled image')} ({counts}), {len(rest)} others tested"
    for line in (*found.lines(), *notes, drawn):
        say(line)

    network = adapt_model(run.model, run.recipe, labelled, options)
    held_out = predict_held_out(run.model, run.recipe, labelled, options)
    if held_out is not None:
        calibrate_adapted(network, held_out)
    network.cut = None if network.cut is None else replace(network.cut, radius=found.cell_radius)
    network.value_range = found.value_range or network.value_range
    tests = {found.name: rest} | ({} if own is None else {"own domain": own.test})
    pairs = {name: (evaluate(run.model, images), evaluate(network, images)) for name, images in tests.items()}
    before, after = pairs[found.name]
    gain = difference_interval(after.correct.numpy()[None], before.correct.numpy()[None], before.groups)
    about = {
        # A folder or table is found from anywhere; a named source is no place.
        "laboratory": str(Path(domain).resolve()) if Path(domain).exists() else domain,
        "skip_broken": skip_broken,
        "group": str(Path(group).resolve()) if group is not None and is_table(group) else group,
        "run": str(run.folder.resolve()),
        "options": asdict(options),
        "labelled": labelled.counts(),
        "cross_fitted_error_percent": None if held_out is None else held_out.error,
        "tests": {name: {"before": old.to_dict(), "after": new.to_dict()} for name, (old, new) in pairs.items()},
        "gain": gain.to_dict(),
        "not_to_test": not_to_test,
        "value_range": found.value_range,
        "cell_radius": found.cell_radius,
    }
    save_adapted(run, network, out, about)
    return Adaptation(out, pairs, gain, held_out)
