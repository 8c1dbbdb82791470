"""`capsella papers`."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from capsella.cli.flags import Group, parse, positional
from capsella.cli.screen import by_paper, console, list_entries, show
from capsella.errors import CapsellaError, check_argument, check_minimum, unknown_name
from capsella.plugins import load_plugin
from capsella.ray_cluster import ClusterOptions, ray_session

OWN = "our own tables"
ALONE = ("few-images", "few-images-pretrained", "viewpoint-curves")  # tables that are trained on this machine only


@dataclass(frozen=True, kw_only=True)
class Papers:
    """Run published tables and figures, or reproduce papers.

        capsella papers list               list the tables and figures of each paper
        capsella papers run NAME           train what a table or figure needs, and print
                                           its numbers beside the published ones
        capsella papers run findings       train what all claims need, and draw a forest plot
        capsella papers reproduce [PAPER]  train all of them and write one page

    After an interruption, run the same command again to continue.
    """

    action: Annotated[Literal["list", "run", "reproduce"], *positional("list|run|reproduce", "What to do.")]
    name: Annotated[str | None, *positional("[NAME]", "A table or figure to run, or a paper to reproduce.")] = None
    budget: Literal["small", "medium", "full"] | None = None
    """small: minutes per row, a smoke test. medium: hours per row on two cores. full: the paper's own training.
    Default: small for a table or figure, medium for a paper."""
    seeds: int | None = None
    """Number of seeds per row. Default: 1; with reproduce 3 for tables that a claim compares."""
    data: str | None = None
    """With run: other data sets, separated by commas, e.g. fashion-mnist instead of mnist."""
    rows: tuple[str, ...] = ()
    """With run routings or training-lengths: train only these routings."""
    plugin: Path | None = None
    """A Python file that registers a routing, network or recipe of your own."""
    stand_ins: bool = False
    """With reproduce: use similar images where those of a paper are not available, and mark such results."""
    out: Path | None = None
    """Folder of the runs and results. Default: runs/NAME-BUDGET; tables of a paper may share one."""
    dry_run: bool = False
    """With reproduce: time a few steps of each network, print the plan, and stop."""
    cluster: Annotated[ClusterOptions, Group] = ClusterOptions()

    def __post_init__(self) -> None:
        check_minimum(1, seeds=self.seeds)
        check_argument(self.name is not None or self.action != "run", "be given (capsella papers list)", name=self.name)
        is_table = self.action == "run" and self.name != "findings"  # otherwise many tables, or none
        check_argument(is_table or self.data is None, "come with run and a table", data=self.data)
        check_argument(is_table or not self.rows, "come with run and a table", rows=self.rows)
        check_argument(not is_table or not self.dry_run, "come with reproduce", dry_run=self.dry_run)
        check_argument(not is_table or not self.stand_ins, "come with reproduce", stand_ins=self.stand_ins)
        is_alone = self.action == "run" and self.name in ALONE
        check_argument(self.cluster.on is None or not is_alone, f"be left out for {self.name}", on=self.cluster.on)
        check_argument(self.cluster.on is None or self.plugin is None, "come without --on", plugin=self.plugin)


def run(arguments: list[str]) -> None:
    """List, run or reproduce."""
    options = parse(Papers, arguments or ["--help"], "papers")
    if options.plugin is not None:
        load_plugin(options.plugin)
    if options.action == "list":
        _list()
    elif options.action == "run" and options.name != "findings":
        _run(options)
    else:
        _reproduce(options, shlex.join(["capsella", "papers", *arguments]))


def _list() -> None:
    from capsella.papers.published import FIGURES, OWN_TABLES, TABLES

    registered: dict[str, Any] = {**TABLES, **OWN_TABLES, **FIGURES}
    groups: dict[str, list[tuple[str, str]]] = {paper: [] for paper in (*by_paper([*TABLES, *FIGURES]), OWN)}
    for name, make in registered.items():
        paper = name.partition("-")[0]
        groups[paper if paper in groups else OWN].append((name, str(make("full").title)))
    list_entries(groups)


def _run(options: Papers) -> None:
    from capsella.papers.published import FIGURES, find_published
    from capsella.papers.table_types import draw_table

    name, budget, seeds = options.name or "", options.budget or "small", options.seeds or 1
    published = find_published(name, budget, options.data, options.rows)
    words = ["capsella", "papers", "run", name, "--budget", budget, "--seeds", str(seeds)]
    words += ["--data", options.data] if options.data else []
    words += ["--rows", *options.rows] if options.rows else []
    parts = (published.family or name, budget, options.data)
    folder = options.out or Path("runs", "-".join(part for part in parts if part))
    with ray_session(options.cluster):
        values = published.run(folder, tuple(range(seeds)), shlex.join(words), console())
    path = published.path(folder)
    if name in FIGURES:
        print(values["title"], values["measured"], values["note"], sep="\n")
        print(f"figure written to {path}, and its numbers to {path.with_suffix('.json').name}")
    else:
        show(draw_table(values))
        print(f"table written to {path}")


def _reproduce(options: Papers, command: str) -> None:
    """Make every table and figure, and one page; for a dry run, print the plan."""
    from capsella.experiments.reproduce import find_entries, missing_lines, plan_summary, reproduce
    from capsella.papers.published import FIGURES, TABLES

    budget, papers = options.budget or "medium", by_paper([*TABLES, *FIGURES])
    findings = options.name == "findings"  # all tables that a claim needs, and their forest plot
    if options.name is not None and options.name not in papers and not findings:
        raise unknown_name("paper", options.name, papers)
    folder, out = options.out or Path("runs", f"{'findings' if findings else 'reproduce'}-{budget}"), console()
    out.print("looking for the images", markup=False)
    stand_ins = options.stand_ins or findings
    entries, missing = find_entries(options.name, budget, options.seeds or 3, folder, stand_ins=stand_ins)
    if not entries:
        raise CapsellaError("\n".join(["the images of no table or figure are available", *missing_lines(missing)]))
    print(*missing_lines(missing), sep="\n", end="\n" if missing else "")
    if options.dry_run:
        show(plan_summary(entries))
        return
    with ray_session(options.cluster):
        print(f"page    {reproduce(folder, entries, missing, command, out)}")
