"""Test a run on another domain, and adapt it to that domain with a few labelled images."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch

from capsella.data import (
    Domain,
    ImageSet,
    Splits,
    copies_among,
    data_from,
    draw_labelled,
    pixel_digests,
    read_domain,
    single_images,
    without_images,
)
from capsella.data.holdout import limit_per_class
from capsella.data.images import join
from capsella.data.options import is_table
from capsella.errors import CapsellaError, pluralize
from capsella.evaluation.metrics import Evaluation, evaluate
from capsella.evaluation.statistics import Interval, difference_interval
from capsella.image_options import CellCut, ValueRange
from capsella.training import (
    Run,
    RunFolder,
    adapt_model,
    calibrate_adapted,
    load_splits,
    predict_held_out,
    save_adapted,
)
from capsella.training.adapt import HeldOutPredictions
from capsella.training.config import AdaptOptions

_EXAMPLES = 3
ADAPTED = (
    "probabilities and prediction sets assume equally many images of each class, as in this run's adaptation; with the "
    "domain's own class proportions, the coverage may be lower than requested"
)


def notes_on_adapted(runs: Mapping[str, Run]) -> list[str]:
    """Return a note for each adapted run: its pages show test images of the domain that it was first trained on."""
    return [
        f"note: {name} was adapted to {run.adapted['laboratory']}; its test images are those of its original training"
        for name, run in runs.items()
        if run.adapted is not None
    ]


def domain_for(
    run: Run,
    place: str,
    group: str | None = None,
    value_range: ValueRange | None = None,
    cut: CellCut | None = None,
    skip_broken: bool = False,
) -> Domain:
    """Read all images of a domain that show classes of the run, in the form that its network takes.

    Args:
        run: the trained run; its value range is that of another camera, and is not used.
        place: a folder, an .npz file or a named source.
        group, value_range, cut: as for `read_domain`.
        skip_broken: leave out images that cannot be read; the data options of the run may also set this.

    Raises:
        CapsellaError: the run takes pairs, stereo or non-square images; the domain has none of its classes; or as for
            `read_domain`.
    """
    (height, width), channels = run.model.image_size, run.model.channels
    if run.recipe.data.is_paired or height != width or channels not in (1, 3):
        form = f"{height}×{width}×{channels}"
        raise CapsellaError(f"{run.folder}: must take square images of one object, grey or in colour, got {form}")
    skip = skip_broken or run.recipe.data.skip_broken
    options = replace(run.recipe.data, size=height, channels=1 if channels == 1 else 3, skip_broken=skip)
    return read_domain(place, options, value_range, cut, group).of_classes(run.model.classes)


def domain_images(
    run: Run, place: str, per_class: int | Literal["all"] | None, group: str | None, value_range: ValueRange | None
) -> tuple[ImageSet, dict[str, Any], list[str]]:
    """Return the test images, their description for the JSON file, and messages for the user.

    Raises:
        CapsellaError: the run was adapted with all of the images; or `value_range` is given, but the adaptation has its
            own.
    """
    group = _group_of(run, place) if group is None else group
    if run.adapted is None:
        found = domain_for(run, place, group, value_range)
    else:
        found = _as_adapted(run, run.adapted, place, group, value_range)
    images, lines = found.images, found.lines()
    if run.adapted is not None:
        images = without_images(images, run.adapted["not_to_test"])
        if used := len(found.images) - len(images):
            what = pluralize(used, "image")
            lines.append(f"left out {what} that the run was adapted with, or copies of them, or of their groups")
        if not len(images):
            raise CapsellaError(f"{place}: the run was adapted with all of these images")
    if isinstance(per_class, int):
        images = images.subset(limit_per_class(images.labels, per_class, run.recipe.data.split_seed))
    own, note = own_images(run)
    seen, warning = (None, note) if own is None else copies_seen(own, images)
    low_high, left_out = found.value_range, found.left_out
    about = {"data": place, "group": group, "range": low_high, "left_out": left_out, "copies_of_training_images": seen}
    if low_high is not None and low_high != run.model.value_range:
        low, high = low_high
        lines.append(f"{found.name}: capsella predict reads these files alike with --range {low:.6g} {high:.6g}")
    return images, {"laboratory": about}, [f"{found.name}: {pluralize(len(images), 'image')} tested", *lines, *warning]


def adapted_images(run: Run, adapted: Mapping[str, Any]) -> tuple[ImageSet, ImageSet]:
    """Return two sets: the images that a run was adapted with, their copies and groups; and the rest of that domain.

    Raises:
        CapsellaError: the images are missing, or one of the sets is empty.
    """
    every = _as_adapted(run, adapted, adapted["laboratory"], adapted.get("group")).images
    used = set(adapted["not_to_test"])
    learned = torch.tensor([digest in used for digest in pixel_digests(every)])
    test = without_images(every, adapted["not_to_test"])
    if not learned.any() or not len(test):
        raise CapsellaError("the run was adapted with none of these images, or with all of them")
    return every.subset(learned.nonzero().flatten()), test


def _group_of(run: Run, place: str) -> str | None:
    """Return the option `group` of the adaptation if `place` is the domain that the run was adapted to."""
    if run.adapted is None or Path(run.adapted["laboratory"]).resolve() != Path(place).resolve():
        return None
    return cast(str | None, run.adapted.get("group"))


def _as_adapted(
    run: Run, adapted: Mapping[str, Any], place: str, group: str | None, asked: ValueRange | None = None
) -> Domain:
    """Read a domain with the adaptation's value range, cell radius and stain if it holds images of the adaptation.

    Measured again, they would change with each added image, and so would all pixels, by which these images are found.
    Other domains are measured.

    Raises:
        CapsellaError: a range is given although the domain holds images of the adaptation.
    """
    value_range = adapted.get("value_range")
    cut = None if adapted.get("cut") is None else CellCut.from_dict(adapted["cut"])
    skip = bool(adapted.get("skip_broken"))
    if value_range is None and cut is None:
        return domain_for(run, place, group, asked, skip_broken=skip)
    found = domain_for(run, place, group, value_range and (value_range[0], value_range[1]), cut, skip)
    is_there = len(without_images(found.images, adapted["not_to_test"])) < len(found.images)
    if is_there and asked is not None:
        raise CapsellaError(f"range: {run.folder} was adapted with images of {place}, and keeps that range")
    return found if is_there else domain_for(run, place, group, asked, skip_broken=skip)


def own_images(run: Run) -> tuple[Splits | None, list[str]]:
    """Return the images that the run was trained on, or None and a note if they are missing or have changed."""
    try:
        return load_splits(run), []
    except (CapsellaError, ValueError) as error:
        what = "they are neither tested nor compared with the images of the domain"
        return None, [f"note: the run's own images are missing or have changed, so {what} ({error})"]


def copies_seen(own: Splits, images: ImageSet) -> tuple[int, list[str]]:
    """Return how many of the images are copies of training or validation images, and a warning if there are any."""
    trained = join([single_images(part, "copies") for part in (own.train, own.validation)])
    copies = copies_among(images, trained)
    if not len(copies):
        return 0, []
    names = [f"image {row}" if images.files is None else images.files[row] for row in copies[:_EXAMPLES].tolist()]
    return len(copies), [
        f"WARNING: {len(copies)} of {pluralize(len(images), 'image')} are copies of images that the run was trained "
        f"on, e.g. {', '.join(names)}: the error rate is too low"
    ]


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
        calibrate_adapted(network, labelled, held_out)
    network.cut = found.cut
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
        "cut": found.cut and found.cut.to_dict(),
    }
    save_adapted(run, network, out, about)
    return Adaptation(out, pairs, gain, held_out)
