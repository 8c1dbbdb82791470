"""`capsella papers`."""

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from capsella.cli.flags import Group, parse, positional
from capsella.cli.screen import by_paper, console, list_entries, show
from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum, unknown_name
from capsella.ray_cluster import ClusterOptions, ray_session


@dataclass(frozen=True, kw_only=True)
class Papers:
    """Run published tables and figures, or reproduce papers.

        capsella papers list               list the tables and figures of each paper
        capsella papers run NAME           train what one needs, and print its numbers beside ours
        capsella papers run findings       train what the papers' claims need, and draw a forest plot
        capsella papers reproduce [PAPER]  train all of them, and write one page

    Interrupted and called again, a command continues.
    """

    action: Annotated[Literal["list", "run", "reproduce"], *positional("list|run|reproduce", "What to do.")]
    name: Annotated[str | None, *positional("[NAME]", "A table or figure to run, or a paper to reproduce.")] = None
    budget: Literal["small", "medium", "full"] | None = None
    """small: few images and epochs, to compare the rows with one another. medium: hours per row on two cores. full: the
    paper's own training. Default: small for a table or figure, medium for a paper."""
    seeds: int | None = None
    """Train each row with this many seeds (default 1); to reproduce, each row that a claim compares (default 3)."""
    data: str | None = None
    """With run: other sources of images, with commas between them, e.g. smallnorb-jpeg for smallnorb."""
    hours: float | None = None
    """With reproduce: plan what fits into this time. Default: everything."""
    stand_ins: bool = False
    """With reproduce: use similar images where a paper's are not available, and say so on the page."""
    out: Path | None = None
    """Folder of the runs and results. Default: runs/NAME-BUDGET, one for all tables of a family."""
    dry_run: bool = False
    """With reproduce: measure, print the plan, and train nothing."""
    cluster: Annotated[ClusterOptions, Group] = ClusterOptions()

    def __post_init__(self) -> None:
        check_minimum(1, seeds=self.seeds)
        check_argument(self.hours is None or self.hours > 0, "be above 0", hours=self.hours)
        check_argument(self.name is not None or self.action != "run", "be given: capsella papers list", name=self.name)


def run(arguments: list[str]) -> None:
    """List, run or reproduce."""
    options = parse(Papers, arguments or ["--help"], "papers")
    if options.action == "list":
        _list()
    elif options.action == "run" and options.name != "findings":
        _run(options)
    else:
        _reproduce(options, shlex.join(["capsella", "papers", *arguments]))


def _list() -> None:
    from capsella.papers.published import FIGURES, OWN_TABLES, TABLES

    tables, figures = {**TABLES, **OWN_TABLES}, dict(FIGURES)
    texts: dict[str, str] = {}
    for name, make in tables.items():
        table: Any = make("full")
        texts[name] = table.title
    texts |= {name: str(make("full").title) for name, make in figures.items()}
    list_entries({paper: [(name, texts[name]) for name in names] for paper, names in by_paper(texts).items()})


def _run(options: Papers) -> None:
    from capsella.data import source_names
    from capsella.papers.published import FIGURES, OWN_TABLES, TABLES
    from capsella.papers.table_types import draw_table

    name, budget = options.name or "", options.budget or "small"
    registered: dict[str, Any] = {**TABLES, **OWN_TABLES, **FIGURES}
    if name not in registered:
        raise unknown_name("name", name, registered)
    published, seeds = registered[name](budget), options.seeds or 1
    command = f"capsella papers run {name} --budget {budget} --seeds {seeds}"
    if options.data is not None:
        for source in options.data.split(","):
            if source not in source_names():
                raise unknown_name("data", source, source_names())
        published, command = published.on(options.data), f"{command} --data {options.data}"
    parts = (published.family or name, budget, options.data)
    folder = options.out or Path("runs", "-".join(part for part in parts if part))
    with ray_session(options.cluster):
        values = published.run(folder, tuple(range(seeds)), command, console())
    path = published.path(folder)
    if name in FIGURES:
        print(values["title"], values["measured"], values["note"], sep="\n")
        print(f"drawn in {path}, with its numbers in {path.with_suffix('.json').name}")
    else:
        show(draw_table(values))
        print(f"written to {path}")


def _reproduce(options: Papers, command: str) -> None:
    """Print the plan; unless it is a dry run, train what fits, and write the page after every run."""
    from capsella.experiments.reproduce import (
        Measurements,
        Reproduction,
        find_entries,
        left_out,
        make_plan,
        plan_summary,
        trainings_of,
    )
    from capsella.papers.published import FIGURES, TABLES

    began, budget, seeds = time.monotonic(), options.budget or "medium", options.seeds or 3
    if options.data is not None:
        raise ArgumentError("data", "come with run", options.data)
    papers = by_paper([*TABLES, *FIGURES])
    findings = options.name == "findings"  # all tables that a claim needs, and their forest plot
    if options.name is not None and options.name not in papers and not findings:
        raise unknown_name("paper", options.name, papers)
    folder, out = options.out or Path("runs", f"{'findings' if findings else 'reproduce'}-{budget}"), console()
    out.print("looking for the images", markup=False)
    measured = Measurements(folder)
    entries, missing = find_entries(options.name, budget, folder, measured, stand_ins=options.stand_ins or findings)
    if not entries:
        raise CapsellaError("\n".join(["no table or figure has its images", *left_out(missing)]))
    out.print("timing a few steps of each network", markup=False)
    plan = make_plan(trainings_of(entries, seeds, measured.seconds), options.hours)
    show(plan_summary(plan, entries))
    print(*left_out(missing), sep="\n", end="\n" if missing else "")
    if options.dry_run:
        return
    reproduction = Reproduction(folder, entries, missing, plan, seeds, command, out, began)
    with ray_session(options.cluster):
        print(f"page    {reproduction.run()}")
