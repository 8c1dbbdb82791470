"""`capsella figure`."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsella.cli.published import read_call, usage
from capsella.errors import unknown_name
from capsella.papers.kinds.published import BudgetName
from capsella.papers.published import FIGURES


@dataclass(frozen=True)
class FigureOptions:
    """Draw a published figure; what is finished in its folder is read, what was interrupted is continued."""

    budget: BudgetName = "small"
    """Short trainings, to compare the networks with each other, or the paper's own length."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the runs of every line; two or more give a standard deviation."""
    data: str | None = None
    """Another source of images than the figure's, as in pbc for bloodmnist."""
    folder: Path | None = None
    """Folder of the runs, the picture and its numbers; default: that of the table whose runs it shows, as in
    runs/sabour2017-1-BUDGET or runs/forslov2018-BUDGET, and -DATA where it is given."""


def run(arguments: list[str]) -> None:
    """List the figures, or draw one."""
    console = Console(highlight=False)
    if not arguments or arguments[0] in ("-h", "--help"):
        _list(console)
        return
    if arguments[0] not in FIGURES:
        _list(console)
        raise unknown_name("figure", arguments[0], FIGURES)
    call = read_call("figure", FIGURES, FigureOptions, arguments)
    values = call.run(console)
    console.print(values["title"], values["measured"], values["note"], sep="\n", markup=False, soft_wrap=True)
    path = call.published.path(call.folder)
    console.print(
        f"drawn in {escape(str(path))}, its numbers in {escape(path.with_suffix('.json').name)}", soft_wrap=True
    )


def _list(console: Console) -> None:
    console.print(usage("figure"), soft_wrap=True)
    table = Table("figure", "what it shows", title="figures", title_justify="left")
    for name, published in FIGURES.items():
        table.add_row(name, published("full").title)
    console.print(table)
