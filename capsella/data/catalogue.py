"""Every source of images by its name: reading one, and the table of all of them."""

from typing import NamedTuple

from capsella.data import affnist, cells, cifar10, digits, idx, medmnist, smallnorb, toys
from capsella.data.download import data_root
from capsella.data.folder import read_folder
from capsella.data.npz import read_npz
from capsella.data.options import DataOptions, FolderData, NamedData, NpzData
from capsella.data.source import Parts, Source
from capsella.data.split.table import SplitTable
from capsella.errors import ArgumentError, unknown_name

_SOURCES: dict[str, Source] = {
    source.name: source
    for module in (digits, idx, affnist, cifar10, cells, smallnorb, toys, medmnist)
    for source in module.SOURCES
}


def read_source(options: DataOptions, table: SplitTable | None) -> Parts:
    """The images of a source, split as the source does; `table`: a split file, whose unused files need no reading."""
    if isinstance(options, FolderData):
        return read_folder(options, table)
    if isinstance(options, NpzData):
        return read_npz(options.path, options)
    if not isinstance(options, NamedData):
        raise ArgumentError("data", "be a single source of images", options.kind)
    if options.name not in _SOURCES:
        raise unknown_name("name", options.name, source_names())
    return _SOURCES[options.name].read(options)


def source_names() -> tuple[str, ...]:
    """Return the names of all public data sets."""
    return tuple(_SOURCES)


class SourceRow(NamedTuple):
    """A source, as `capsella list data` shows it."""

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
