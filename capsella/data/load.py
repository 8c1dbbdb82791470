"""`load_data`: from options to train, validation and test images; and the table of the sources."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from capsella.data import affnist, cells, cifar10, digits, idx, medmnist, smallnorb, toys
from capsella.data.download import data_root
from capsella.data.folder import read_folder
from capsella.data.holdout import first_per_class, hold_out
from capsella.data.images import ImageSet
from capsella.data.npz import read_npz
from capsella.data.options import PAIRED, DataOptions
from capsella.data.pairs import PairSet
from capsella.data.source import Parts, Source
from capsella.data.split_file import SplitTable, assign, read_split_file
from capsella.data.splits import Splits
from capsella.errors import CapsellaError, unknown_name

_SOURCES: dict[str, Source] = {
    source.name: source
    for module in (digits, idx, affnist, cifar10, cells, smallnorb, toys, medmnist)
    for source in module.SOURCES
}


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
    if options.is_paired:
        return _pairs(load_data(options.single()), options)
    table = None if options.split_file is None else read_split_file(options.split_file)
    parts = read_source(options, table)
    return split_parts(parts if table is None else assign(parts, table), options)


def split_parts(parts: Parts, options: DataOptions) -> Splits:
    """What `options` hold out and keep of a source's images: `load_data` without the reading."""
    train, validation, test = parts.train, parts.validation, parts.test
    try:
        if test is None:
            train, test = hold_out(train, options.test, options.split_seed)
        if validation is None:
            train, validation = hold_out(train, options.validation, options.split_seed)
    except CapsellaError as error:
        raise CapsellaError(f"{parts.name}: {error}") from error
    if options.first_classes is not None and options.first_classes > len(train.classes):
        raise ValueError(
            f"first_classes: must be at most {len(train.classes)}, the classes of {parts.name}, "
            f"got {options.first_classes}"
        )
    return Splits(
        parts.name,
        _limited(train, options.per_class, options),
        _limited(validation, options.validation_per_class, options),
        _limited(test, options.test_per_class, options),
        parts.broken,
    )


def _pairs(splits: Splits, options: DataOptions) -> Splits:
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
    return Splits(f"pairs of {splits.name}", train, validation, test, splits.broken)


def _border(images: ImageSet) -> float:
    """Mean of the outermost rows and columns of the first thousand images."""
    few = images.images[:1000].float()
    return float(torch.cat([few[..., [0, -1], :].flatten(), few[..., [0, -1]].flatten()]).mean())


def _limited(images: ImageSet, per_class: int | None, options: DataOptions) -> ImageSet:
    if per_class is not None:
        images = first_per_class(images, per_class, options.split_seed)
    return images if options.first_classes is None else images.of_classes(images.classes[: options.first_classes])


def read_source(options: DataOptions, table: SplitTable | None) -> Parts:
    """The images of a source, split as the source does; `table`: a split file, whose unused files need no reading."""
    if options.name == "folder":
        return read_folder(options, table)
    if options.name == "npz":
        return read_npz(Path(options.path or ""), options)
    if options.name not in _SOURCES:
        raise unknown_name("name", options.name, (*_SOURCES, *PAIRED, "folder", "npz"))
    return _SOURCES[options.name].read(options)


class SourceRow(NamedTuple):
    """A source, as `capsella data list` shows it."""

    name: str
    images: str
    """Train / validation / test, as the source splits them; – where `load_data` holds them out."""
    size: str
    classes: int
    found: str
    """Where it lies on this machine, or how to get it."""
    citation: str


def source_table() -> list[SourceRow]:
    """Every named source and whether its files are at hand; nothing is loaded or downloaded."""
    rows = [
        SourceRow(source.name, source.images, source.size, source.classes, _found(source), source.citation)
        for source in _SOURCES.values()
    ]
    citation = "Sabour, Frosst, Hinton 2017, arXiv:1710.09829"
    found = _found(_SOURCES["mnist"])
    return [
        *rows,
        SourceRow("multimnist", "54,001,000 / 5,999,000 / 10,000,000 pairs", "36×36×1", 10, f"mnist {found}", citation),
    ]


def _found(source: Source) -> str:
    present = [data_root() / file for file in source.files if (data_root() / file).is_file()]
    if not present:
        return source.get
    return f"in {present[0].parent} ({len(present)} of {len(source.files)} files)"
