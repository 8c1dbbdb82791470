"""Splits written as files for others: what `load_data` takes for training, validation and test."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from capsella.data.images import ImageSet
from capsella.data.load import read_source, split_parts
from capsella.data.options import DataOptions
from capsella.data.show import ClassCounts, describe
from capsella.data.source import Parts
from capsella.data.split_file import UNUSED, assign, has_file_names, image_keys, read_split_file, write_table
from capsella.data.thesis_sets import THESIS_SETS, thesis_set

_NUMBER = "number in the source"  # with spaces, as no array of a file is called


def save_split(options: DataOptions, path: Path) -> list[ClassCounts]:
    """Write which image `load_data(options)` puts where, for `split_file` in `DataOptions` to bring back.

    The same options with the split file in place of `per_class`, `first_classes` and the like then give the same
    splits, whatever their `split_seed`. The file names images where the source tells them apart by name, as a folder
    does; otherwise it counts them: see `capsella.data.split_file`.

    Returns:
        Images per class and split.

    Raises:
        ValueError, CapsellaError: as `load_data` does.
    """
    return _Listing.read(options).save(options, path)


def save_thesis_sets(options: DataOptions, folder: Path) -> dict[str, list[ClassCounts]]:
    """Write the split files mini.csv, small.csv, … of the thesis's sets (`thesis_set`) of one source into `folder`.

    A set of more classes than the source has is left out.

    Returns:
        Images per class and split of each set that was written.

    Raises:
        ValueError, CapsellaError: as `load_data` does.
    """
    listing = _Listing.read(options)
    variants = {name: thesis_set(name, options) for name in THESIS_SETS}
    classes = len(listing.parts.train.classes)
    return {
        name: listing.save(variant, folder / f"{name}.csv")
        for name, variant in variants.items()
        if (variant.first_classes or 0) <= classes
    }


@dataclass(frozen=True)
class _Listing:
    """A source whose images carry their number; keys and class_names are by that number."""

    parts: Parts
    by_file: bool
    keys: list[str]
    class_names: list[str]
    never_read: list[str]
    """Files that the options' own split file leaves unused: they are unused still."""

    @classmethod
    def read(cls, options: DataOptions) -> "_Listing":
        table = None if options.split_file is None else read_split_file(options.split_file)
        parts = read_source(options, table)
        by_file = has_file_names(parts)
        keys = [key for part in image_keys(parts, by_file).values() for key in part]
        names = [images.classes[label] for images in parts.named().values() for label in images.labels.tolist()]
        never_read = sorted(table.unused - set(keys)) if table is not None and table.by_file and by_file else []
        parts = _numbered(parts)
        return cls(parts if table is None else assign(parts, table), by_file, keys, names, never_read)

    def save(self, options: DataOptions, path: Path) -> list[ClassCounts]:
        splits = split_parts(self.parts, options)
        split_of = {
            number: split for split, images in splits.named().items() for number in images.metadata[_NUMBER].tolist()
        }
        rows = [
            (key, split_of.get(number, UNUSED)) if self.by_file else (key, name, split_of.get(number, UNUSED))
            for number, (key, name) in enumerate(zip(self.keys, self.class_names, strict=True))
        ]
        columns = ("file", "split") if self.by_file else ("index", "class", "split")
        write_table(columns, [*rows, *((file, UNUSED) for file in self.never_read)], path)
        return describe(splits)


def _numbered(parts: Parts) -> Parts:
    """Each image with its number, and without its pixels, on which no split depends."""
    numbered: dict[str, ImageSet] = {}
    start = 0
    for split, images in parts.named().items():
        number = torch.arange(start, start + len(images))
        pixels = images.images.new_zeros(1, 1, 1, 1).expand(len(images), -1, -1, -1)
        numbered[split] = replace(images, images=pixels, metadata={**images.metadata, _NUMBER: number})
        start += len(images)
    return replace(parts, **numbered)  # type: ignore[arg-type]
