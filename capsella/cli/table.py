"""`capsella table`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsella.cli.published import run_published
from capsella.cli.screen import show
from capsella.papers.budget import BudgetName
from capsella.papers.published import OWN_TABLES, TABLES
from capsella.papers.table_types import draw_table


@dataclass(frozen=True)
class TableOptions:
    """Run a published table. Finished runs are read, interrupted ones are continued."""

    budget: BudgetName = "small"
    """small: few images and epochs, to compare the rows with one another. medium: hours a row on two cores, near to
    where it ends. full: the whole training of each row."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of each row's runs; two or more give a standard deviation."""
    data: str | None = None
    """Other sources of images, with commas between them, as smallnorb-jpeg for smallnorb: each row takes the one that
    stands for its own. For sabour2017-affnist: of the changed images alone."""
    out: Path | None = None
    """Folder of the runs and the JSON; default: runs/NAME-BUDGET[-DATA], one for all tables of forslov2018."""


def run(arguments: list[str]) -> None:
    """List the tables, or run one."""
    if ran := run_published("table", {**TABLES, **OWN_TABLES}, TableOptions, _describe, arguments):
        values, path = ran
        show(draw_table(values))
        print(f"written to {path}")


def _describe(table: Any) -> str:
    return f"{table.title}; {len(table.rows)} rows ({', '.join(table.columns)})"
