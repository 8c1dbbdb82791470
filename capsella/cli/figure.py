"""`capsella figure`."""

from dataclasses import dataclass
from pathlib import Path

from capsella.cli.published import read_call
from capsella.cli.screen import console
from capsella.papers.kinds.published import BudgetName
from capsella.papers.published import FIGURES


@dataclass(frozen=True)
class FigureOptions:
    """Draw a published figure. Finished runs are read, interrupted ones are continued."""

    budget: BudgetName = "small"
    """small: short trainings, to compare the networks with one another. full: the paper's own length."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of each line's runs; two or more give a standard deviation."""
    data: str | None = None
    """Another source of images, as pbc for bloodmnist."""
    folder: Path | None = None
    """Folder of the runs, the picture and its numbers; default: that of its table, as in runs/sabour2017-1-BUDGET."""


def run(arguments: list[str]) -> None:
    """List the figures, or draw one."""
    call = read_call("figure", FIGURES, FigureOptions, lambda figure: str(figure.title), arguments)
    if call is not None:
        values = call.run(console())
        print(values["title"], values["measured"], values["note"], sep="\n")
        path = call.published.path(call.folder)
        print(f"drawn in {path}, with its numbers in {path.with_suffix('.json').name}")
