"""`capsella table`."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsella.cli.published import read_call, usage
from capsella.errors import unknown_name
from capsella.papers.kinds.published import BudgetName, draw_table
from capsella.papers.published import TABLES


@dataclass(frozen=True)
class TableOptions:
    """Run a published table; what is finished in its folder is read, what was interrupted is continued."""

    budget: BudgetName = "small"
    """Few images for few epochs, to compare the rows with each other, or the whole training of each row."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the runs of every row; two or more give a standard deviation."""
    data: str | None = None
    """Another source of images than the table's, as in smallnorb-jpeg for smallnorb; for sabour2017-affnist, of the
    changed images alone."""
    folder: Path | None = None
    """Folder of the runs and of the table's JSON; default: runs/NAME-BUDGET, and -DATA where it is given. Figures
    take their runs from there; those of forslov2018 and its tables share one folder, runs/forslov2018-BUDGET."""


def run(arguments: list[str]) -> None:
    """List the tables, or run one."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # a file or pipe has no width to fit into
    if not arguments or arguments[0] in ("-h", "--help"):
        _list(console)
        return
    if arguments[0] not in TABLES:
        _list(console)
        raise unknown_name("table", arguments[0], TABLES)
    call = read_call("table", TABLES, TableOptions, arguments)
    console.print(draw_table(call.run(console)))
    console.print(f"written to {escape(str(call.published.path(call.folder)))}", soft_wrap=True)


def _list(console: Console) -> None:
    console.print(usage("table"), soft_wrap=True)
    table = Table("table", "what it is", "rows", "columns", title="tables", title_justify="left")
    for name, published in TABLES.items():
        full = published("full")
        table.add_row(name, full.title, str(len(full.rows)), ", ".join(full.columns))
    console.print(table)
