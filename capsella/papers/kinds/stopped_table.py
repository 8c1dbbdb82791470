"""A table of networks that were stopped at one error and then met images under changes they had never seen."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.data import DataOptions, load_data
from capsella.errors import ArgumentError, CapsellaError
from capsella.files import write_json
from capsella.grid import Results, Row, evaluated_again
from capsella.papers.kinds.published import (
    NOT_RUN,
    FolderTable,
    hardware_of,
    mean_cell,
    seeds_phrase,
    table_values,
)

LIKE = {"smallnorb": ("smallnorb-jpeg", "smallnorb-jpeg-poses"), "affnist": ("affnist-like",)}
"""Images that published errors may stand beside, by those of the paper; the documentation says what differs."""


@dataclass(frozen=True)
class ErrorOn:
    """Test images, one of the two sets of a table.

    key: what a run's JSON calls the result: "test" where these are the recipe's own test images, and `source` where
    they have one. head: what the table calls the set. data: the options of the set, from those of the recipe; None for
    its own test images. source: the name of their source, where it is not the training's. mark: what stands behind a
    number, where they are not the paper's.

    Raises:
        ValueError: both `data` and `source`, or a source and another key.
    """

    key: str
    head: str
    data: Callable[[DataOptions], DataOptions] | None = None
    source: str | None = None
    mark: str = ""

    def __post_init__(self) -> None:
        if self.data is not None and self.source is not None:
            raise ValueError("source: must be left out where `data` is given")
        if self.source not in (None, self.key):
            raise ArgumentError("key", f"be the source {self.source!r} where there is one", self.key)

    def of(self, data: DataOptions) -> DataOptions | None:
        """The options of the set, from those of the recipe; None for its own test images."""
        if self.source is not None:
            return dataclasses.replace(data, name=self.source)
        return self.data(data) if self.data is not None else None


@dataclass(frozen=True, kw_only=True)
class StoppedRow(Row):
    """One network.

    label: what the row says, the network last. paper: the published errors in per cent, as it was stopped and under the
    change; None where there are none. impossible: sources whose images cannot make this row, each with the sentence
    that says why. stops: sources on whose images the network stops at another error, in per cent. other_stop: that
    error, on such a source: what was reached is then no number to hold against the paper's.
    """

    label: tuple[str, ...]
    paper: tuple[float, float] | None
    impossible: Mapping[str, str] = field(default_factory=dict)
    stops: Mapping[str, float] = field(default_factory=dict)
    other_stop: float | None = None

    @property
    def bracket(self) -> str:
        """The mark as it stands behind a number."""
        return f" ({self.mark})" if self.mark else ""

    @property
    def mark(self) -> str:
        """What stands behind a number in its cell, in brackets."""
        return "" if self.other_stop is None else f"at {self.other_stop:g} %"


@dataclass(frozen=True)
class StoppedTable(FolderTable):
    """Errors on plain and on changed test images, of networks of one training set, and how far they are apart.

    title: paper and section. note: what a reader of the numbers must know. columns: heads of the labels.
    rows: by twos, the second to be compared with the first: its error less the first's, seed by seed, where all runs
    of both reached the error at which they are to stop.
    errors_on: the images that are like the training's, and the changed ones.

    Raises:
        ValueError: an odd number of rows, or none.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[StoppedRow, ...]
    errors_on: tuple[ErrorOn, ErrorOn]

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) % 2:
            raise ArgumentError("rows", "come by twos, to be compared", [row.slug for row in self.rows])

    def on(self, source: str) -> "StoppedTable":
        """The same table on the images of another source, without the rows that its images cannot make.

        Where only the changed images have a source of their own, that source is replaced, and the networks train as
        before. Rows on images that are not much like the paper's (`LIKE`) have no published numbers; numbers on
        changed images of another source are marked.
        """
        if usual := [on.source for on in self.errors_on if on.source]:
            mark = "" if source in usual else " (stand-in)"
            plain, changed = (
                dataclasses.replace(on, key=source, source=source, mark=mark) if on.source else on
                for on in self.errors_on
            )
            papers = [row.paper if source in (*usual, *LIKE.get(usual[0], ())) else None for row in self.rows]
            kept = [dataclasses.replace(row, paper=paper) for row, paper in zip(self.rows, papers, strict=True)]
            return dataclasses.replace(self, rows=tuple(kept), errors_on=(plain, changed))
        rows = []
        for row in self.rows:
            if source not in row.impossible:
                moved, own = row.on(source), row.recipe.data.name
                paper = row.paper if source in (own, *LIKE.get(own, ())) else None
                stop = row.stops.get(source, row.recipe.stop_at_error)
                recipe = dataclasses.replace(moved.recipe, stop_at_error=stop)
                rows.append(dataclasses.replace(moved, recipe=recipe, paper=paper, other_stop=row.stops.get(source)))
        why = dict.fromkeys(row.impossible[source] for row in self.rows if source in row.impossible)
        stops = dict.fromkeys(
            f"On {source} they stop at {row.stops[source]:g} % instead." for row in rows if source in row.stops
        )
        return dataclasses.replace(self, rows=tuple(rows), note=" ".join([self.note, *why, *stops]))

    def mark_of(self, slug: str) -> str:
        """As `Published.mark_of`: at which error its network stopped, where the paper's stopped at another."""
        return next(row for row in self.rows if row.slug == slug).mark

    def trainings(self) -> tuple[StoppedRow, ...]:
        """As `Published.trainings`."""
        return self.rows

    def images(self) -> Iterator[DataOptions]:
        """As `Published.images`: those of the changed set, too."""
        for data in super().images():
            yield data
            yield from (changed for on in self.errors_on if (changed := on.of(data)) is not None)

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """As `Published.run`."""
        self._check_sources([row.folder(folder, seed) for seed in seeds for row in self.rows])
        return super().run(folder, seeds, command, console)

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`."""
        runs = {row.slug: self._tested(row, results.get(row.slug, []), folder) for row in self.rows}
        rows = []
        for one, other in zip(self.rows[::2], self.rows[1::2], strict=True):
            rows += [self._row_values(row, runs[row.slug]) for row in (one, other)]
            rows.append(self._difference(one, other, runs))
        values = table_values(
            title=self.title,
            note=self.note,
            measured=self._measured(runs),
            command=command,
            folder=folder,
            labels=self.columns,
            columns=self._heads,
            rows=rows,
        )
        write_json(self.path(folder), values)
        return values

    @property
    def _heads(self) -> tuple[str, ...]:
        heads = [f"{on.head}, {whose} %" for on in self.errors_on for whose in ("paper", "ours")]
        return ("stopped", *heads, "gap")

    def _tested(self, row: StoppedRow, runs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
        """Results, and what each network makes of the set that its training does not hold."""
        sets = {on.key: data for on in self.errors_on if (data := on.of(row.recipe.data)) is not None}
        return [
            {**run, **{key: evaluated_again(row.folder(folder, run["seed"]), key, data) for key, data in sets.items()}}
            for run in runs
        ]

    def _check_sources(self, places: Sequence[Path]) -> None:
        """Load images that are still to be tested on: what is wrong with them shows before hours of training.

        Raises:
            CapsellaError: they are not there, or of other classes or another form than the training's.
        """
        for on in self.errors_on:
            if on.source is not None and not all((place / f"{on.key}.json").exists() for place in places):
                data = self.rows[0].recipe.data
                own, other = load_data(data).test, load_data(dataclasses.replace(data, name=on.source)).test
                forms = [(one.classes, one.channels, one.image_size) for one in (own, other)]
                if forms[0] != forms[1]:
                    raise CapsellaError(
                        f"data: {on.source} must have the classes, channels and size of {data.name}, "
                        f"{forms[0]}, got {forms[1]}"
                    )

    def _measured(self, runs: Results) -> str:
        """On how many images of what, over how many seeds, on which hardware."""
        first = [of_row[0] for of_row in runs.values() if of_row]
        sets = [
            f"{on.head.capitalize()}: "
            + " and ".join(
                dict.fromkeys(
                    f"{run[on.key].get('data', run['data'])}, {run[on.key]['images']} images" for run in first
                )
            )
            for on in self.errors_on
        ]
        return "; ".join([*sets, seeds_phrase(runs), hardware_of(runs)]) + "."

    def _row_values(self, row: StoppedRow, runs: list[dict[str, Any]]) -> dict[str, Any]:
        stops = [run["training"]["stopped"] for run in runs]
        stopped = ", ".join(f"epoch {stop['epoch']}" if stop["reached"] else "not reached" for stop in stops)
        if not runs:
            cells = [*row.label, "–", *self._beside(row.paper, "g", [NOT_RUN, NOT_RUN], None)]
            return {"cells": cells, "slugs": [row.slug] * 2, "paper": self._by_key(row.paper), "runs": runs}
        errors = [[run[on.key]["error_percent"] for run in runs] for on in self.errors_on]
        ours = [mean_cell(one) + row.bracket + on.mark for one, on in zip(errors, self.errors_on, strict=True)]
        reached = self._compares(row) and all(stop["reached"] for stop in stops)
        changed = _mean(errors[1]) if reached else None
        cells = [*row.label, stopped, *self._beside(row.paper, "g", ours, changed)]
        slugs, keys = [row.slug] * len(self.errors_on), [on.key for on in self.errors_on]
        return {"cells": cells, "slugs": slugs, "keys": keys, "paper": self._by_key(row.paper), "runs": runs}

    def _difference(self, one: StoppedRow, other: StoppedRow, runs: Results) -> dict[str, Any]:
        """The second network's errors less the first's, of runs of the same seed."""
        by_seed = [{run["seed"]: run for run in runs[row.slug]} for row in (one, other)]
        pairs = [(by_seed[0][seed], by_seed[1][seed]) for seed in by_seed[0] if seed in by_seed[1]]
        errors = [
            [theirs[on.key]["error_percent"] - ours[on.key]["error_percent"] for ours, theirs in pairs]
            for on in self.errors_on
        ]
        paper = None
        if one.paper is not None and other.paper is not None:
            paper = [theirs - ours for ours, theirs in zip(one.paper, other.paper, strict=True)]
        if not pairs:
            stopped, cells = NOT_RUN, self._beside(paper, "+.2f", ["–", "–"], None)
        elif all(run["training"]["stopped"]["reached"] for pair in pairs for run in pair):
            stopped = "all"
            both = zip(errors, self.errors_on, strict=True)
            ours = [mean_cell(values, signed=True) + one.bracket + on.mark for values, on in both]
            cells = self._beside(paper, "+.2f", ours, _mean(errors[1]) if self._compares(one) else None)
        else:
            stopped, cells = "not all: not compared", self._beside(paper, "+.2f", ["–", "–"], None)
        label = [*one.label[:-1], f"{other.label[-1]} − {one.label[-1]}"]
        return {"cells": [*label, stopped, *cells], "paper": self._by_key(paper), "by_seed": self._by_key(errors)}

    def _compares(self, row: StoppedRow) -> bool:
        """Whether its changed images are the paper's, or the same in another form, and it stops where that one did."""
        return row.other_stop is None and not self.errors_on[1].mark

    def _beside(
        self, paper: Sequence[float] | None, form: str, ours: Sequence[str], changed: float | None
    ) -> list[str]:
        """The cells behind a row's stop: the paper's values beside ours, and how far `changed` is from the paper's."""
        published = ["–", "–"] if paper is None else [f"{value:{form}}" for value in paper]
        gap = "–" if paper is None or changed is None else f"{changed - paper[1]:+.1f}"
        return [published[0], ours[0], published[1], ours[1], gap]

    def _by_key(self, values: Sequence[Any] | None) -> dict[str, Any] | None:
        return None if values is None else {on.key: value for on, value in zip(self.errors_on, values, strict=True)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
