"""All public data sets by name."""

from typing import NamedTuple

from capsella.data.download import data_root
from capsella.data.options import NamedData
from capsella.data.sources import affnist, cells, cifar10, digits, idx, medmnist, smallnorb, toys
from capsella.data.sources.base import Source
from capsella.data.splits import SourceSplits
from capsella.errors import unknown_name

_SOURCES: dict[str, Source] = {
    source.name: source
    for module in (digits, idx, affnist, cifar10, cells, smallnorb, toys, medmnist)
    for source in module.SOURCES
}


def read_named(options: NamedData) -> SourceSplits:
    """Read a public data set.

    Raises:
        ValueError: no set has the name. CapsellaError: its files are missing or damaged.
    """
    if options.name not in _SOURCES:
        raise unknown_name("name", options.name, source_names())
    return _SOURCES[options.name].read(options)


def largest_side(name: str) -> int | None:
    """Return the pixels per side of the largest version of a set that is stored at several sizes, else None."""
    return _SOURCES[name].largest if name in _SOURCES else None


def source_names() -> tuple[str, ...]:
    """Return the names of all public data sets."""
    return tuple(_SOURCES)


class SourceRow(NamedTuple):
    """A data set in `capsella list data`.

    images: train / validation / test, as the set is split; – for splits that are held out. found: where the set's
    files are on this machine, or how to get them.
    """

    name: str
    images: str
    size: str
    classes: int
    found: str
    citation: str


def source_table() -> list[SourceRow]:
    """List every public data set and whether its files are there; nothing is loaded or downloaded."""
    rows = [
        SourceRow(source.name, source.images, source.size, source.classes, _found(source), source.citation)
        for source in _SOURCES.values()
    ]
    citation = "Sabour, Frosst, Hinton 2017, arXiv:1710.09829"
    pairs, found = "54,001,000 / 5,999,000 / 10,000,000 pairs", f"mnist {_found(_SOURCES['mnist'])}"
    return [*rows, SourceRow("multimnist", pairs, "36×36×1", 10, found, citation)]


def _found(source: Source) -> str:
    present = [data_root() / file for file in source.files if (data_root() / file).exists()]
    if not present:
        return source.get
    return f"in {present[0].parent} ({len(present)} of {len(source.files)} files)"
