"""The six training sets of Forslöv's thesis (2018, §8.1, Table 1), of any source of labelled images."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from capsella.data.options import DataOptions
from capsella.data.show import ClassCounts
from capsella.data.split.make import ReadSource
from capsella.errors import unknown_name

THESIS_SETS: dict[str, dict[str, int]] = {
    "mini": {"per_class": 100},
    "small": {"per_class": 300},
    "medium-size": {"per_class": 900},
    "basic": {"first_classes": 5},
    "medium": {"first_classes": 10},
    "hard": {},
}
"""What each takes of the whole, as fields of `DataOptions`: so many training images a class, the first classes, all."""


def thesis_set(name: str, options: DataOptions) -> DataOptions:
    """`options` with the training set of that name in the thesis: 2018, §8.1, Table 1.

    The sets share their validation and test images (of their classes); mini is a part of small, that of medium-size,
    and all are parts of hard. A class that has fewer images than the set asks for gives all, as in the thesis. Its
    classes are 15 of one laboratory's; here they are the source's, in the source's order.

    Raises:
        ValueError: no set has that name.

    >>> from capsella.data import NamedData
    >>> thesis_set("mini", NamedData()).per_class
    100
    """
    if name not in THESIS_SETS:
        raise unknown_name("set", name, THESIS_SETS)
    chosen = THESIS_SETS[name]
    return replace(options, per_class=chosen.get("per_class"), first_classes=chosen.get("first_classes"))


def save_thesis_sets(
    options: DataOptions, folder: Path, say: Callable[[str], object] = lambda note: None
) -> dict[str, list[ClassCounts]]:
    """Write the split files mini.csv, small.csv, … of the thesis's sets (`thesis_set`) of one source into `folder`.

    A set of more classes than the source has is left out. `say` is called with a line for what was noticed.

    Returns:
        Images per class and split of each set that was written.

    Raises:
        ValueError, CapsellaError: as `load_data` does.
    """
    source = ReadSource.without_pixels(options)
    source.tell(say)
    classes = len(source.parts.train.classes)
    written = {}
    for name in THESIS_SETS:
        chosen = thesis_set(name, options)
        if (chosen.first_classes or 0) <= classes:
            table, written[name] = source.table(chosen)
            table.write(folder / f"{name}.csv")
    return written
