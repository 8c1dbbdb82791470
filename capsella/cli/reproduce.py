"""`capsella reproduce`."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from capsella.cli.on_cluster import parse
from capsella.cli.screen import by_paper, console, show
from capsella.errors import CapsellaError, check_argument, check_minimum, pluralize, unknown_name
from capsella.experiments import format_duration
from capsella.papers.budget import BudgetName
from capsella.papers.published import FIGURES, TABLES
from capsella.ray_cluster import joined
from capsella.reproduce import (
    Entry,
    ImageCounts,
    Job,
    Night,
    Plan,
    Planned,
    Speeds,
    find_entries,
    jobs_of,
    make_plan,
    write_page,
)
from capsella.reproduce.page import Reproduction


@dataclass(frozen=True)
class ReproduceOptions:
    """Train the tables and figures of the papers by a plan, and write one page.

    Interrupted and called again, it goes on.
    """

    paper: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[PAPER]")] = None
    """One paper, as sabour2017; default: all."""
    hours: float | None = None
    """Plan what fits into this time, counted from now; default: all of it."""
    budget: BudgetName = "medium"
    """small: minutes a row, for a first look. medium: hours a row, nearer to the end. full: the whole recipes."""
    seeds: int = 3
    """Seeds of the rows that a claim compares; the others take one."""
    stand_ins: bool = False
    """Where a paper's images cannot be had, take others like them, and say so on the page."""
    out: Path | None = None
    """Folder of runs and page; default: runs/reproduce-BUDGET."""
    dry_run: bool = False
    """Measure, print the plan, and train nothing. Images that are missing are downloaded, as they are measured on."""

    def __post_init__(self) -> None:
        check_minimum(1, seeds=self.seeds)
        check_argument(self.hours is None or self.hours > 0, "be above 0", hours=self.hours)


def run(arguments: list[str]) -> None:
    """Print the plan; unless it is a dry run, train what fits, and write the page after every run."""
    began = time.monotonic()
    options, place = parse(ReproduceOptions, arguments, "capsella reproduce")
    papers = by_paper([*TABLES, *FIGURES])
    if options.paper is not None and options.paper not in papers:
        raise unknown_name("paper", options.paper, papers)
    folder, out = options.out or Path("runs", f"reproduce-{options.budget}"), console()
    out.print("looking for the images", markup=False)
    counts = ImageCounts(folder)
    entries, missing = find_entries(options.paper, options.budget, folder, counts, stand_ins=options.stand_ins)
    if not entries:
        raise CapsellaError("\n".join(["no table or figure has its images", *_left_out(missing)]))
    jobs, speeds = jobs_of(entries, options.seeds), Speeds(folder, out, counts)
    plan = make_plan(jobs, lambda job: speeds.seconds(job.row.recipe), options.hours)
    _print_plan(plan, entries, jobs)
    for line in _left_out(missing):
        print(line)
    if options.dry_run:
        return
    night = Night(folder, entries, options.seeds, out, began=began)
    command = shlex.join(["capsella", "reproduce", *arguments])

    def page() -> Path:
        return write_page(Reproduction(night, missing, jobs, plan, command), folder)

    with joined(place):
        night.run(plan, page)
    print(f"page    {page()}")


def _left_out(missing: Mapping[str, str]) -> list[str]:
    """A line a reason, with all tables and figures that it is of."""
    names: dict[str, list[str]] = {}
    for name, why in missing.items():
        names.setdefault(why, []).append(name)
    return [f"left out {', '.join(of)}: {why}" for why, of in names.items()]


def _print_plan(plan: Plan, entries: Sequence[Entry], jobs: Sequence[Job]) -> None:
    """A row a table or figure, each run counted where it comes first; and what is left out."""
    table = Table("table or figure")
    for head in ("finished", "to come", "left out", "time"):
        table.add_column(head, justify="right")
    for entry in entries:
        mine = [planned for planned in plan.runs if planned.job.entries[0] == entry.name]
        gone = [planned for planned in plan.left_out if planned.job.entries[0] == entry.name]
        over = sum(job.is_over and job.entries[0] == entry.name for job in jobs)
        time = format_duration(sum(planned.seconds for planned in mine))
        table.add_row(entry.name, str(over), str(len(mine)), str(len(gone)), time if mine else "–")
    show(table)
    print(
        f"{pluralize(len(plan.runs), 'run')} to come, {plan.over} finished. Planned: {format_duration(plan.seconds)}"
        f"{'' if plan.hours is None else f' of {plan.hours:g} h'}, from a few steps of each network here. Every row "
        "has its first seed before any has its second, the quickest first."
    )
    rows: dict[str, list[Planned]] = {}
    for planned in plan.left_out:
        rows.setdefault(planned.job.row.cost, []).append(planned)
    for cost, runs in rows.items():
        seeds = " ".join(str(planned.job.seed) for planned in runs)
        print(f"left out, {format_duration(runs[-1].seconds)} a run: {cost}, seed {seeds}")
