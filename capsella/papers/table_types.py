"""Types of published tables: rows of networks that are trained, tested and printed beside the published numbers.

`Published` is what `capsella papers run` and `capsella papers reproduce` expect of a table or figure.
`capsella.papers.published` lists all of them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple, Self

from rich.console import Console
from rich.table import Table

from capsella.data import DataOptions
from capsella.environment import hardware
from capsella.errors import ArgumentError, CapsellaError, pluralize, unknown_name
from capsella.evaluation import Interval, over_seeds, points
from capsella.experiments import Results, Row, Runner, common_seeds, reevaluate
from capsella.files import write_json
from capsella.models import ImageClassifier
from capsella.papers.budget import BudgetName, Budgets, images, medium
from capsella.training import OptimizerOptions, Recipe
from capsella.training.registry import get_recipe, with_fields

NOT_RUN = "not run"  # the cell of a row that was not trained
DIVERGED = "diverged"  # the cell of a row if all its trainings diverged
SHORT = "short"  # the caveat on all numbers at the small budget
FEW_IMAGES_CAVEAT = "few images"  # the caveat on numbers from far fewer training images than the paper's
COPIES = {"smallnorb-jpeg": "smallnorb", "cifar10-jpeg": "cifar10"}  # complete copies of the papers' images
ERROR_COLUMNS = ("paper %", "ours %", "gap", "train loss", "validation loss", "images/s")
SWEEP_COLUMNS = ("validation error %", "validation loss")
_NUMBER = re.compile(r"[+-]?\d")
_OURS = re.compile(r"(\bours( %)?|, accuracy %)$")  # matches the heads of columns with our numbers

# Budgets of tables whose recipes use SGD, mostly on CIFAR-10; at the small budget Adam learns faster.
PHOTOGRAPHS = Budgets(
    images(100, 20, 100, 4, 32), medium(20_000, 64), OptimizerOptions(learning_rate=1e-3, warmup_steps=10)
)


def few_images_caveat(budget: BudgetName) -> str:
    """Return the caveat for tables whose medium budget trains on at most a tenth of the paper's images."""
    return FEW_IMAGES_CAVEAT if budget == "medium" else ""


class RowSpec(NamedTuple):
    """The specification of a table row.

    slug: prefix of its run folders. recipe: registered name. label: cells of the label columns. paper: the published
    error in per cent, or one per test set; None if there is none. paper_sd: standard deviation of `paper`. overrides:
    changes to the recipe, by dotted path, e.g. {"model.routing.iterations": 1}.
    """

    slug: str
    recipe: str
    label: tuple[str, ...]
    paper: Any = None
    paper_sd: float | None = None
    overrides: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class ErrorRow(Row):
    """A trained row of a table; see `RowSpec`."""

    label: tuple[str, ...]
    paper: Any = None
    paper_sd: float | None = None


def error_rows(specs: Iterable[RowSpec], limit: Callable[[Recipe], Recipe]) -> tuple[ErrorRow, ...]:
    """Return a row for each specification, its recipe limited to a budget by `limit`."""
    return tuple(
        ErrorRow(
            slug=spec.slug,
            recipe_name=spec.recipe,
            recipe=limit(with_fields(get_recipe(spec.recipe), spec.overrides)),
            label=spec.label,
            paper=spec.paper,
            paper_sd=spec.paper_sd,
        )
        for spec in specs
    )


@dataclass(frozen=True, kw_only=True)
class Published:
    """A table or figure.

    title: paper, number and subject. note: text below the table, on what the numbers mean. columns: heads of a table's
    label columns. family: name of the run folder that several tables and figures of a paper share; None for a folder
    of its own. file: stem of its file; default: the name of the folder. caveat_text: appended in brackets to each of
    our numbers. requires_common_seeds: keep only the seeds with which every row was trained. rows: what is trained.
    """

    suffix: ClassVar[str] = "json"

    title: str
    note: str = ""
    columns: tuple[str, ...] = ()
    family: str | None = None
    file: str = ""
    caveat_text: str = ""
    requires_common_seeds: bool = False
    rows: tuple[Row, ...] = ()

    def on(self, source: str) -> Self:
        """Return the table or figure for another source of images.

        Raises:
            ValueError: this one takes no images, or not these.
        """
        if not self.rows:
            raise ArgumentError("data", f"not be given for {self.title}, which takes no images", source)
        return replace(self, rows=tuple(row.on(source) for row in self.rows))

    def path(self, folder: Path) -> Path:
        """Return the path of a table's JSON, or of a figure's picture, which has its JSON beside it."""
        return folder / f"{self.file or folder.resolve().name}.{self.suffix}"

    @property
    def caveat(self) -> str:
        """The caveat on our numbers, e.g. "few images"; empty if they need none."""
        return self.caveat_text

    def rows_to_train(self) -> Sequence[Row]:
        """Return the rows to train; none for a table that only measures or counts.

        Raises:
            CapsellaError: the images that determine the rows cannot be read.
        """
        return self.rows

    def images(self) -> Iterator[DataOptions]:
        """Yield the options of all images that are read, first those that determine the rows."""
        for row in self.rows_to_train():
            yield row.recipe.data

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """Make missing measurements, write `path(folder)` and return the values of its JSON.

        Args:
            results: results of at least one training; those of diverged trainings are missing.
            folder: the folder of the runs.
            command: the command line that makes this table or figure; it is stored beside the numbers.
            console: prints progress.
        """
        raise NotImplementedError

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Train the missing runs, then `build`. Each run has its own folder; finished runs are read from there.

        Raises:
            ValueError: no seeds, duplicate seeds, or seeds for a table that trains nothing.
            CapsellaError: a folder holds a run of another recipe, images cannot be read, or all trainings diverged.
        """
        rows = self.rows_to_train()
        if not rows and tuple(seeds) != (0,):
            raise ArgumentError("seeds", f"not be given for {self.title}, which trains nothing", tuple(seeds))
        results = Runner(folder, console).results(rows, seeds)
        diverged = [slug for slug, runs in results.items() if len(runs) < len(seeds)]
        results = common_seeds(results) if self.requires_common_seeds and results else results
        if diverged and not any(results.values()):
            raise CapsellaError(f"{folder}: trainings diverged: {', '.join(diverged)}; remove them to train anew")
        return self.build(results, folder, command, console)

    def write(
        self, folder: Path, command: str, measured: str, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Write the JSON of a table and return its values.

        Args:
            folder: the folder of the runs; cells mention the trainings that diverged there.
            command: the command line that makes this table.
            measured: what was measured, on which data, with how many seeds, on which hardware.
            columns: heads of the columns with numbers, which follow the labels.
            rows: for each row its "cells", one per head, and the values they were made from; "slugs" lists the rows
                whose networks the numbers in `ours_columns` belong to, in that order.
        """
        values: dict[str, Any] = {
            "title": self.title,
            "note": self.note,
            "measured": measured,
            "command": command,
            "heads": [*self.columns, *columns],
            "labels": len(self.columns),
            **({"caveat": self.caveat_text} if self.caveat_text else {}),
        }
        values["rows"] = [_name_diverged(row, ours_columns(values), folder) for row in rows]
        write_json(self.path(folder), values)
        return values


def _name_diverged(row: Mapping[str, Any], ours: Sequence[int], folder: Path) -> dict[str, Any]:
    cells = list(row["cells"])
    for at, slug in zip(ours, row.get("slugs", []), strict=False):
        if diverged := len(list(folder.glob(f"{slug}-seed*/diverged.json"))):
            note = f"{cells[at]} ({pluralize(diverged, 'seed')} diverged)"
            cells[at] = DIVERGED if cells[at] == NOT_RUN else note
    return {**row, "cells": cells}


@dataclass(frozen=True)
class ReevaluatedRow:
    """A row that tests modified versions of another row's networks.

    slug: name of the JSON in the other row's run folders. of: the other row's slug. label, paper: as in `ErrorRow`.
    change: function from a trained network to the network that is tested.
    """

    slug: str
    of: str
    label: tuple[str, ...]
    change: Callable[[ImageClassifier], ImageClassifier]
    paper: float | None


@dataclass(frozen=True, kw_only=True)
class ErrorTable(Published):
    """A table of test errors. reevaluated: rows that test other rows' networks again; each follows its row."""

    rows: tuple[ErrorRow, ...]
    reevaluated: tuple[ReevaluatedRow, ...] = ()

    def on(self, source: str) -> Self:
        """Return the table for other sources of images, separated by commas.

        In a table with several sources, each name replaces the source that is its prefix: smallnorb-jpeg replaces
        smallnorb. If the images are no copy of the paper's, the row has no published number, and the "data" column, if
        there is one, names them.

        Raises:
            ValueError: none of the rows' sources is a prefix of a name.
        """
        sources, names = {row.recipe.data.source for row in self.rows}, source.split(",")
        replaced = {paper: next((name for name in names if name.startswith(paper)), paper) for paper in sources}
        if len(sources) == len(names) == 1:
            replaced = dict.fromkeys(sources, source)
        for name in names:
            if name not in replaced.values():
                raise ArgumentError("data", f"continue the name of one of {sorted(sources)}", name)
        rows = tuple(self._move(row, replaced[row.recipe.data.source]) for row in self.rows)
        published = {row.slug for row in rows if row.paper is not None}
        again = tuple(row if row.of in published else replace(row, paper=None) for row in self.reevaluated)
        return replace(self, rows=rows, reevaluated=again)

    def _move(self, row: ErrorRow, source: str) -> ErrorRow:
        data, moved = row.recipe.data, row.on(source)
        if source == data.source or COPIES.get(source) == data.source:
            return moved
        name = f"pairs of {source}" if data.is_paired else source
        label = [name if head == "data" else cell for head, cell in zip(self.columns, row.label, strict=True)]
        return replace(moved, label=tuple(label), paper=None, paper_sd=None)

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`. The JSON has each run's result."""
        rows: list[dict[str, Any]] = []
        for row in self.rows:
            runs = results.get(row.slug, [])
            rows.append(_error_values(row, row.slug, runs, row.paper_sd))
            for again in (again for again in self.reevaluated if again.of == row.slug):
                folders = [row.folder(folder, run["seed"]) for run in runs]
                tests = [reevaluate(path, again.slug, row.recipe.data, again.change) for path in folders]
                changed = [{**run, "test": test} for run, test in zip(runs, tests, strict=True)]
                rows.append(_error_values(again, row.slug, changed))
        return self.write(folder, command, measured_text("Test error", results), ERROR_COLUMNS, rows)


def error_table(
    title: str,
    note: str,
    columns: tuple[str, ...],
    specs: Iterable[RowSpec],
    budgets: Budgets,
    budget: BudgetName,
) -> ErrorTable:
    """Return a table limited to a budget, which the note then begins with."""
    return ErrorTable(
        title=title,
        note=budgets.note(budget) + note,
        columns=columns,
        rows=error_rows(specs, lambda recipe: budgets.limit(recipe, budget)),
        caveat_text=few_images_caveat(budget),
    )


def _error_values(
    row: ErrorRow | ReevaluatedRow, slug: str, runs: list[dict[str, Any]], paper_sd: float | None = None
) -> dict[str, Any]:
    cells = [*row.label, *error_cells(row.paper, runs, paper_sd)]
    return {"cells": cells, "slugs": [slug], "paper_error_percent": row.paper, "runs": runs}


def error_cells(paper: float | None, runs: list[dict[str, Any]], paper_sd: float | None = None) -> list[str]:
    """Return the cells of `ERROR_COLUMNS` from the results of a row's runs."""
    printed = "–" if paper is None else f"{paper:g}" + (f" ± {paper_sd:g}" if paper_sd is not None else "")
    if not runs:
        return [printed, NOT_RUN, *("–" for _ in ERROR_COLUMNS[2:])]
    errors = [run["test"]["error_percent"] for run in runs]
    best = [run["training"]["best"] for run in runs]
    return [
        printed,
        over_seeds(errors),
        "–" if paper is None else f"{fmean(errors) - paper:+.2f}",
        *(f"{fmean([epoch[name] for epoch in best]):.4f}" for name in ("train_loss", "validation_loss")),
        f"{fmean([run['training']['images_per_second'] for run in runs]):.0f}",
    ]


@dataclass(frozen=True, kw_only=True)
class Sweep(Published):
    """A table of validation errors. No test image is seen."""

    rows: tuple[ErrorRow, ...]

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Train the missing runs and write the table. A row that diverged has an infinite error."""
        rows = []
        for row, runs in zip(self.rows, Runner(folder, console).validate(self.rows, seeds), strict=True):
            errors, losses = [run.error for run in runs.values()], [run.loss for run in runs.values()]
            cells = [*row.label, over_seeds(errors), f"{fmean(losses):.4f}"]
            rows.append({"cells": cells, "validation_error_percent": errors, "validation_loss": losses})
        measured = f"Error on validation images; {pluralize(len(seeds), 'seed')}."
        return self.write(folder, command, measured, SWEEP_COLUMNS, rows)


@dataclass(frozen=True)
class TestSet:
    """One of the two sets of test images of a `MatchedErrorTable`.

    key: key of its result among those of a run: "test" for the recipe's test images. head: name in the table. options:
    function from the recipe's data options to those of this set; None for the recipe's test images. caveat: appended to
    each number on this set.
    """

    __test__ = False  # not a class of pytest

    key: str
    head: str
    options: Callable[[DataOptions], DataOptions] | None = None
    caveat: str = ""


@dataclass(frozen=True, kw_only=True)
class MatchedErrorTable(Published):
    """A table of errors on plain and on changed test images, for networks stopped at the same error.

    rows: pairs of networks to compare, whose labels end with the network. If all runs of a pair reached the error, a
    third row has the second network's errors minus the first one's, over the seeds that both have. test_sets: images
    like the training images, and changed ones. stand_ins: fields of the table on other images, by source. stop_caveat:
    the error at which networks stop if it is not the paper's, e.g. "at 7 %"; appended in brackets to our numbers.
    """

    rows: tuple[ErrorRow, ...]
    test_sets: tuple[TestSet, TestSet]
    stand_ins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stop_caveat: str = ""

    def on(self, source: str) -> Self:
        """Return the table for another source of images.

        Raises:
            ArgumentError: not one of `stand_ins`.
        """
        if source not in self.stand_ins:
            raise unknown_name("data", source, self.stand_ins)
        return replace(self, **self.stand_ins[source])

    @property
    def caveat(self) -> str:
        """The error at which networks stop, e.g. "at 7 %"; empty if it is the paper's."""
        return self.stop_caveat

    def images(self) -> Iterator[DataOptions]:
        """Yield the data options of the recipes and of the changed images."""
        for data in super().images():
            yield data
            yield from (test_set.options(data) for test_set in self.test_sets if test_set.options is not None)

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`."""
        runs = {row.slug: self._with_tests(row, results[row.slug], folder) for row in self.rows}
        rows = []
        for first, second in zip(self.rows[::2], self.rows[1::2], strict=True):
            rows += [self._row(first, runs[first.slug]), self._row(second, runs[second.slug])]
            rows.append(self._difference(first, second, runs))
        heads = (f"{test_set.head}, {whose} %" for test_set in self.test_sets for whose in ("paper", "ours"))
        measured = self._measured(runs) + diverged_phrase(folder, runs)  # left out, also of the differences
        return self.write(folder, command, measured, ("stopped", *heads, "gap"), rows)

    def _with_tests(self, row: ErrorRow, runs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
        """Return the results extended by those on test sets that training does not evaluate."""
        data = row.recipe.data
        sets = {test_set.key: test_set.options(data) for test_set in self.test_sets if test_set.options is not None}
        return [
            {**run, **{key: reevaluate(row.folder(folder, run["seed"]), key, data) for key, data in sets.items()}}
            for run in runs
        ]

    def _measured(self, runs: Results) -> str:
        first = [of_row[0] for of_row in runs.values() if of_row]
        texts = []
        for test in self.test_sets:
            sets = [f"{run[test.key].get('data', run['data'])}, {run[test.key]['images']} images" for run in first]
            texts.append(f"{test.head.capitalize()}: {' and '.join(dict.fromkeys(sets))}")
        return "; ".join([*texts, seeds_phrase(runs), hardware_of(runs)]) + "."

    def _row(self, row: ErrorRow, runs: list[dict[str, Any]]) -> dict[str, Any]:
        stops = [run["training"]["stopped"] for run in runs]
        stopped = ", ".join(f"epoch {stop['epoch']}" if stop["reached"] else "not reached" for stop in stops) or "–"
        keys = [test_set.key for test_set in self.test_sets]
        cells = self._cells(row.paper, [[run[key]["error_percent"] for run in runs] for key in keys])
        if not all(stop["reached"] for stop in stops):
            cells[-1] = "–"
        return {"cells": [*row.label, stopped, *cells], "slugs": [row.slug] * 2, "keys": keys, "runs": runs}

    def _difference(self, first: ErrorRow, second: ErrorRow, runs: Results) -> dict[str, Any]:
        """Return the row with the second network's errors minus the first one's, for the seeds that both have."""
        keys = [test_set.key for test_set in self.test_sets]
        pairs = [(a, b) for a in runs[first.slug] for b in runs[second.slug] if a["seed"] == b["seed"]]
        errors = [[b[key]["error_percent"] - a[key]["error_percent"] for a, b in pairs] for key in keys]
        paper = None
        if first.paper is not None and second.paper is not None:
            paper = tuple(b - a for a, b in zip(first.paper, second.paper, strict=True))
        label = [*first.label[:-1], f"{second.label[-1]} − {first.label[-1]}"]
        cells = ["all" if pairs else NOT_RUN, *self._cells(paper, errors, sign="+")]
        if not all(run["training"]["stopped"]["reached"] for pair in pairs for run in pair):
            cells = ["not all: not compared", *("–" for _ in cells[1:])]
        return {"cells": [*label, *cells], "by_seed": dict(zip(keys, errors, strict=True))}

    def _cells(self, paper: Sequence[float] | None, errors: Sequence[Sequence[float]], sign: str = "") -> list[str]:
        """Return the paper's and our errors, and the gap between the two on changed images; "+" signs differences."""
        printed = ["–", "–"] if paper is None else [f"{value:{'+.2f' if sign else 'g'}}" for value in paper]
        stop = f" ({self.stop_caveat})" if self.stop_caveat else ""
        caveats = [stop + test_set.caveat for test_set in self.test_sets]
        if not errors[0]:
            return [printed[0], NOT_RUN, printed[1], NOT_RUN, "–"]
        texts = [over_seeds(values) for values in errors]
        ours = [("" if text.startswith("-") else sign) + text + c for text, c in zip(texts, caveats, strict=True)]
        gap = "–" if paper is None or any(caveats) else f"{fmean(errors[1]) - paper[1]:+.1f}"
        return [printed[0], ours[0], printed[1], ours[1], gap]


def draw_table(values: Mapping[str, Any]) -> Table:
    """Return a table for a terminal from the JSON of a table."""
    caption = " ".join(text for text in (values["measured"], values["note"]) if text)
    table = Table(*values["heads"], title=values["title"], caption=caption)
    for column in table.columns:
        column.overflow = "fold"  # a number must not be cut short
    for cells in caveated_cells(values):
        table.add_row(*cells)
    return table


def caveated_cells(values: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of a table's JSON, with the caveat in brackets after each of our numbers.

    >>> small = {"heads": ["data", "paper %", "ours %", "gap"], "command": "capsella papers run x --budget small"}
    >>> caveated_cells({**small, "rows": [{"cells": ["MNIST", "0.25", "3.10", "+2.85"]}]})
    [['MNIST', '0.25', '3.10 (short)', '–']]
    """
    return [[f"{text} ({caveat})" if caveat else text for text, caveat in row] for row in cells_with_caveats(values)]


def cells_with_caveats(
    values: Mapping[str, Any], states: Mapping[str, str] | None = None
) -> list[list[tuple[str, str]]]:
    """Return the (text, caveat) of each cell of a table's JSON; most caveats are empty.

    The caveat is the table's own, or `SHORT` at the small budget. A number with a caveat has no meaningful gap to the
    paper's, so that cell becomes a dash.

    Args:
        values: see `Published.write`.
        states: states of trainings, by slug of the row; a state replaces the table's caveat.
    """
    default = values.get("caveat") or (SHORT if "--budget small" in values["command"] else "")
    ours, table = ours_columns(values), []
    for row in values["rows"]:
        slugs = dict(zip(ours, row.get("slugs", []), strict=False))
        caveats = {at: (states or {}).get(slugs.get(at, "")) or default for at in ours}
        caveats = {at: text for at, text in caveats.items() if text and _NUMBER.match(row["cells"][at])}
        gaps = {at for at, head in enumerate(values["heads"]) if head == "gap"} if caveats else set()
        table.append([("–" if at in gaps else text, caveats.get(at, "")) for at, text in enumerate(row["cells"])])
    return table


def ours_columns(values: Mapping[str, Any]) -> list[int]:
    """Return the indices of the columns of a table's JSON that hold our numbers."""
    return [at for at, head in enumerate(values["heads"]) if _OURS.search(head)]


def measured_text(what: str, results: Results) -> str:
    """Return what a table of test results measured, on which images, with how many seeds and on which processors."""
    runs = [run for of_row in results.values() for run in of_row]
    tested = dict.fromkeys(f"{run['data']}, {run['test']['images']} images" for run in runs)
    return f"{what} on {' and '.join(tested)}; {seeds_phrase(results)}; {hardware_of(results)}."


def hardware_of(results: Results) -> str:
    """Name the processors on which the runs were trained, each once."""
    return " and ".join(dict.fromkeys(hardware(run["environment"]) for runs in results.values() for run in runs))


def seeds_phrase(results: Results) -> str:
    """Say over how many seeds the numbers of a table are taken.

    >>> seeds_phrase({"a": [{}], "b": []}), seeds_phrase({"a": [{}, {}, {}], "b": [{}]})
    ('one seed', 'mean ± standard deviation over 1 to 3 seeds a row')
    """
    counts = sorted({len(runs) for runs in results.values() if runs})
    if counts == [1]:
        return "one seed"
    seeds = f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds a row"
    return f"mean ± standard deviation over {seeds}"


def diverged_phrase(folder: Path, slugs: Iterable[str]) -> str:
    """Name the diverged runs of these rows in a sentence; empty if there are none."""
    names = sorted(path.parent.name for slug in slugs for path in folder.glob(f"{slug}-seed*/diverged.json"))
    return f" Diverged: {', '.join(names)}." if names else ""


def seeds_of(results: Results) -> list[int]:
    """Return the seeds of all runs, each once."""
    return list(dict.fromkeys(run["seed"] for runs in results.values() for run in runs))


def with_test(gain: Interval | None) -> dict[str, Any] | None:
    """Return a difference ready for JSON, with its p-value and the smallest detectable difference."""
    return None if gain is None else {**gain.to_dict(), "p": gain.p_value, "detectable": gain.detectable}


def interval_cell(gain: Interval | None) -> str:
    """Format a difference of proportions and its interval in percentage points; a dash for None."""
    return "–" if gain is None else f"{points(gain.estimate)} [{points(gain.low)}, {points(gain.high)}]"


def gain_cells(gain: Interval | None, p_value: float | None = None) -> list[str]:
    """Return cells of a difference: its interval, p-value (its own by default) and smallest detectable difference."""
    if gain is None:
        return ["–"] * 3
    p_value = gain.p_value if p_value is None else p_value
    return [interval_cell(gain), f"{p_value:.2g}", points(gain.detectable, signed=False)]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper: one row has a lower error than another.

    text: the claim in a sentence. where: name of the table or figure whose runs decide it. better, worse: slugs of the
    rows. better_rates, worse_rates: slugs of the same networks at other learning rates; each side is compared at the
    rate with the lowest validation error. paper: the two published errors in per cent; None if the paper only shows a
    curve. on: head of a test set of a `MatchedErrorTable`; None for the runs' own test images.
    """

    text: str
    where: str
    better: str
    worse: str
    paper: tuple[float, float] | None
    on: str | None = None
    better_rates: tuple[str, ...] = ()
    worse_rates: tuple[str, ...] = ()

    @property
    def slugs(self) -> set[str]:
        """The slugs of all rows that decide the claim."""
        return {self.better, self.worse, *self.better_rates, *self.worse_rates}
