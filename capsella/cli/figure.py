"""`capsella figure`."""

from dataclasses import dataclass
from pathlib import Path

from capsella.cli.published import run_published
from capsella.papers.budget import BudgetName
from capsella.papers.published import FIGURES


@dataclass(frozen=True)
class FigureOptions:
    """Draw a published figure. Finished runs are read, interrupted ones are continued."""

    budget: BudgetName = "small"
    """small: short trainings, to compare the networks with one another. medium: hours a row on two cores, near to
    where it ends. full: the paper's own length."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of each line's runs; two or more give a standard deviation."""
    data: str | None = None
    """Another source of images, as pbc for bloodmnist."""
    out: Path | None = None
    """Folder of the runs, the picture and its numbers; default: that of its table, as in runs/sabour2017-1-BUDGET."""


def run(arguments: list[str]) -> None:
    """List the figures, or draw one."""
    if ran := run_published("figure", FIGURES, FigureOptions, lambda figure: str(figure.title), arguments):
        values, path = ran
        print(values["title"], values["measured"], values["note"], sep="\n")
        print(f"drawn in {path}, with its numbers in {path.with_suffix('.json').name}")
