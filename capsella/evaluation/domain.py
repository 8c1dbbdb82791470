"""Load images of another domain for a run, without those it was adapted with, and find copies of its own images."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import torch

from capsella.data import (
    Domain,
    ImageSet,
    Splits,
    copies_among,
    pixel_digests,
    read_domain,
    single_images,
    without_images,
)
from capsella.data.holdout import limit_per_class
from capsella.data.images import join
from capsella.errors import CapsellaError, pluralize
from capsella.image_options import ValueRange
from capsella.training import Run, load_splits

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
    cell_radius: float | None = None,
    skip_broken: bool = False,
) -> Domain:
    """Read all images of a domain that show classes of the run, in the form that its network takes.

    Args:
        run: the trained run; its value range is that of another camera, and is not used.
        place: a folder, an .npz file or a named source.
        group, value_range, cell_radius: as for `read_domain`.
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
    return read_domain(place, options, value_range, cell_radius, group).of_classes(run.model.classes)


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
    """Read a domain with the adaptation's value range and cell radius if it holds images of the adaptation.

    Measured again, both would change with each added image, and so would all pixels, by which these images are found.
    Other domains are measured.

    Raises:
        CapsellaError: a range is given although the domain holds images of the adaptation.
    """
    value_range, cell_radius = adapted.get("value_range"), adapted.get("cell_radius")
    skip = bool(adapted.get("skip_broken"))
    if value_range is None and cell_radius is None:
        return domain_for(run, place, group, asked, skip_broken=skip)
    found = domain_for(run, place, group, value_range and (value_range[0], value_range[1]), cell_radius, skip)
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
