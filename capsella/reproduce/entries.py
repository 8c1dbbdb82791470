"""The tables and figures that are to be made, on the images at hand."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsella.data import DataOptions, load_once
from capsella.errors import CapsellaError, warn_once
from capsella.experiments import Results, Row, common_seeds
from capsella.files import read_json, write_json
from capsella.papers.budget import BudgetName
from capsella.papers.published import FIGURES, STAND_INS, TABLES, paper_of
from capsella.papers.table_types import Published
from capsella.training import RunFolder


@dataclass(frozen=True, eq=False)
class Entry:
    """A table or figure.

    name: as registered. verb: "table" or "figure". published: on the images at hand. budget: of its trainings. rows:
    that are trained for it. folder: of its runs. source: the images that stand in for the paper's, if any.
    """

    name: str
    verb: str
    published: Published
    budget: BudgetName
    rows: tuple[Row, ...]
    folder: Path
    source: str | None = None

    @property
    def paper(self) -> str:
        """The paper that it is of, as in "sabour2017"."""
        return paper_of(self.name)

    @property
    def numbers(self) -> Path:
        """The JSON that `make` writes."""
        return self.published.path(self.folder).with_suffix(".json")

    def pictures(self, values: Mapping[str, Any]) -> list[Path]:
        """A figure's PNG files, by what its JSON holds; none of a table, or where there is no JSON."""
        if self.verb != "figure" or not values:
            return []
        path = self.published.path(self.folder)
        return [path.parent / name for name in ([one["picture"] for one in values.get("figures", [])] or [path.name])]

    def command(self, seeds: int) -> str:
        """What makes it alone, with so many seeds."""
        words = f"capsella {self.verb} {self.name} --budget {self.budget}"
        if self.rows:
            words += f" --seeds {' '.join(map(str, range(seeds)))}"
        if self.source:
            words += f" --data {self.source}"
        return f"{words} --out {shlex.quote(str(self.folder))}"

    def results(self, seeds: int) -> Results:
        """Of the runs that are tested; where the entry needs all rows, of the seeds that all have."""
        found = {row.slug: tested(row, self.folder, seeds) for row in self.rows}
        return common_seeds(found) if self.published.requires_common_seeds else found


def tested(row: Row, folder: Path, seeds: int) -> list[dict[str, Any]]:
    """The results of a row's first so many seeds, as far as they are there."""
    runs = [RunFolder(row.folder(folder, seed)) for seed in range(seeds)]
    return [run.read("result") for run in runs if run.is_tested]


def find_entries(
    paper: str | None, budget: BudgetName, folder: Path, counts: "ImageCounts", *, stand_ins: bool
) -> tuple[list[Entry], dict[str, str]]:
    """Every table and figure of a paper, or of all, whose images are at hand; and why each of the others is left out.

    Args:
        paper: as in "sabour2017"; None takes all.
        budget: of the trainings.
        folder: in which each family of runs has a folder.
        counts: of images, which are looked for here.
        stand_ins: take the images of `STAND_INS` where the paper's are not to be had.
    """
    found, missing = [], {}
    for verb, registered in (("table", TABLES), ("figure", FIGURES)):
        for name, make in registered.items():
            if paper in (None, paper_of(name)):
                try:
                    found.append(_entry(name, verb, make(budget), budget, folder, counts, stand_ins))
                except (CapsellaError, OSError) as error:
                    missing[name] = str(error)
    return found, missing


def _entry(
    name: str, verb: str, published: Published, budget: BudgetName, folder: Path, counts: "ImageCounts", stand_ins: bool
) -> Entry:
    """On the paper's images, or on the stand-ins.

    Raises:
        CapsellaError: neither is to be had.
    """
    source = None
    try:
        _check_images(published, counts)
    except (CapsellaError, OSError) as error:
        if name not in STAND_INS:
            raise
        if not stand_ins:
            raise CapsellaError(f"{error}; --stand-ins takes images like them instead") from error
        source = STAND_INS[name]
        published = published.on(source)
        _check_images(published, counts)
    runs = folder / "-".join([published.family or name, *([source] if source else [])])
    return Entry(name, verb, published, budget, tuple(published.rows_to_train()), runs, source)


def _check_images(published: Published, counts: "ImageCounts") -> None:
    """Count all images, so that what is missing shows before the first training."""
    for data in published.images():
        counts.of(data)


def remembered(path: Path) -> dict[str, Any]:
    """What a file keeps so that it need not be measured anew; nothing, with a warning, where it is damaged."""
    try:
        values = read_json(path)
    except CapsellaError as error:
        values = error
    if isinstance(values, dict):
        return values
    warn_once(str(path), f"{path} is damaged; what it kept is measured anew")
    return {}


class ImageCounts:
    """How many images options stand for, each counted once and remembered in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = path = folder / "images.json"
        self._known: dict[str, list[int]] = {}
        self._present: set[str] = set()
        self._missing: dict[str, Exception] = {}  # nobody waits twice for a download that fails
        if path.exists():
            self._known = remembered(path)

    def of(self, data: DataOptions) -> tuple[int, int, int]:
        """Training, validation and test images.

        Raises:
            CapsellaError: they are not there, or broken.
        """
        key = json.dumps(data.to_dict(), sort_keys=True)
        if key not in self._known or data.source not in self._present:
            if (known := self._missing.get(data.source, self._missing.get(key))) is not None:
                raise known
            try:
                self._known[key] = [len(part) for part in load_once(data).named().values()]
                self._present.add(data.source)
            except (CapsellaError, OSError) as error:
                # Where the source is there, these options alone do not fit it.
                self._missing[key if data.source in self._present else data.source] = error
                raise
            write_json(self.path, self._known)
        training, validation, test = self._known[key]
        return training, validation, test
