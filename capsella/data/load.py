"""`load_data`: from options to train, validation and test images."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import count, islice
from pathlib import Path

import torch

from capsella.data.download import data_root
from capsella.data.images import ImageSet, join
from capsella.data.laboratory import by_class_name, common_classes, copies_among, on_laboratory
from capsella.data.options import DataOptions, DomainData, PairData
from capsella.data.pairs import PairSet
from capsella.data.split.make import ReadSource
from capsella.data.split.sets import SPLIT_NAMES, LabelledImages, Splits, single_images
from capsella.errors import CapsellaError

PAIRS_PER_IMAGE = 1000
"""Sabour et al. 2017, §6: 1,000 pairs for each digit, of 60,000 to train and 10,000 to test."""


def load_data(options: DataOptions) -> Splits:
    """Load the images that `options` name and hold out the splits that their source does not bring along.

    The test images are held out first, then the validation images from the rest; then `per_class`,
    `validation_per_class` and `test_per_class` thin out each; then `first_classes` takes its classes of each. Pairs are
    made last, of two images of the same split.

    Raises:
        ValueError: no source has that name, or it has fewer classes than `first_classes`; pairs of images in colour, or
            of fewer than three classes.
        CapsellaError: the images are not there, cannot be read, or cannot be split as asked.
    """
    if isinstance(options, PairData):
        return _pairs(load_data(options.single()), options)
    if isinstance(options, DomainData):
        return _laboratories(options)
    return ReadSource.of(options).split(options)


def load_once(options: DataOptions) -> Splits:
    """As `load_data`; the last public set stays in memory for the next call. One's own images may change meanwhile."""
    return load_data(options) if options.is_own else _loaded(options, data_root())


@lru_cache(maxsize=1)
def _loaded(options: DataOptions, root: Path) -> Splits:
    """The images that `options` name, of the data sets in the folder `root`."""
    return load_data(options)


def _laboratories(options: DomainData) -> Splits:
    """Each laboratory split for itself, then joined; the metadata `laboratory` counts them.

    Where one has groups, an image of another that has none is a group of its own.

    A range of values belongs to one laboratory's camera: the whole has none.
    """
    places = options.domains
    read = [on_laboratory(options, place) for place in places]
    sources = [ReadSource.of(one) for one in read]
    whole = [join(list(source.source.named().values())) for source in sources]
    classes = options.classes or common_classes(whole, places)
    alone = count(-1, -1) if any("group" in images.metadata for images in whole) else None
    splits = []
    for number, (source, one) in enumerate(zip(sources, read, strict=True)):
        parts = source.source
        known = {split: by_class_name(images, classes)[0] for split, images in parts.named().items()}
        split = source._replace(source=replace(parts, **known)).split(one)  # type: ignore[arg-type]
        splits.append({name: _numbered(images, number, len(places), alone) for name, images in split.named().items()})
    train, validation, test = (join([split[name] for split in splits]) for name in SPLIT_NAMES)
    notes = [note for source in sources for note in source.source.notes]
    if copies := len(copies_among(test, join([train, validation]))):
        notes.append(f"WARNING: {copies} of {len(test)} test images are copies of another laboratory's training images")
    return Splits(
        ", ".join(source.source.name for source in sources),
        train,
        validation,
        test,
        broken=tuple(error for source in sources for error in source.source.broken),
        notes=tuple(notes),
    )


def _numbered(images: LabelledImages, number: int, laboratories: int, alone: Iterator[int] | None) -> ImageSet:
    """With the number of their laboratory, and groups that no other laboratory has.

    alone: numbers for images without a group; None where no laboratory has groups.
    """
    single = single_images(images, "laboratories")
    metadata = {"laboratory": torch.full((len(single),), number)}
    if (group := single.metadata.get("group")) is not None:
        metadata["group"] = group.long() * laboratories + number
    elif alone is not None:
        metadata["group"] = torch.tensor([*islice(alone, len(single))])
    return replace(single, metadata=metadata)


def _pairs(splits: Splits, options: PairData) -> Splits:
    """Pairs within each split; no two splits share the seed of their draws.

    Raises:
        CapsellaError: images whose borders are bright, whose sums would be white.
    """
    sources = [images for images in splits.named().values() if isinstance(images, ImageSet)]  # single ones: all are
    if options.pair_invert:
        sources = [replace(images, images=255 - images.images) for images in sources]
    if (border := _border(sources[0])) > 127:
        raise CapsellaError(
            f"{splits.name}: images must be light on black for pairs, got borders with a mean of {border:.0f} of 255; "
            + ("leave pair_invert out" if options.pair_invert else "set pair_invert for dark on bright ones")
        )
    numbers = (options.train_pairs, options.validation_pairs, options.test_pairs)
    train, validation, test = (
        PairSet(images, number or PAIRS_PER_IMAGE * len(images), 3 * options.split_seed + stream, options.pair_shift)
        for stream, (images, number) in enumerate(zip(sources, numbers, strict=True))
    )
    return replace(splits, name=f"pairs of {splits.name}", train=train, validation=validation, test=test)


def _border(images: ImageSet) -> float:
    """Mean of the outermost rows and columns of the first thousand images."""
    few = images.images[:1000].float()
    return float(torch.cat([few[..., [0, -1], :].flatten(), few[..., [0, -1]].flatten()]).mean())
