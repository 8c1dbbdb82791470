"""All public data sets by name."""

from dataclasses import replace

from capsella.data.options import NamedData
from capsella.data.sources import affnist, cells, cifar10, idx, medmnist, smallnorb, toys
from capsella.data.sources.base import Source
from capsella.data.splits import SourceSplits
from capsella.errors import unknown_name

_SOURCES: dict[str, Source] = {
    source.name: source
    for module in (idx, affnist, cifar10, cells, smallnorb, toys, medmnist)
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


def source_table() -> list[Source]:
    """List every public data set, MultiMNIST included; nothing is loaded or downloaded."""
    pairs, citation = "54,001,000 / 5,999,000 / 10,000,000 pairs", "Sabour, Frosst, Hinton 2017, arXiv:1710.09829"
    multimnist = replace(_SOURCES["mnist"], name="multimnist", images=pairs, size="36×36×1", citation=citation)
    return [*_SOURCES.values(), multimnist]
