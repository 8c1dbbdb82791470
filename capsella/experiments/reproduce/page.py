"""Run the tables and figures of papers, and write one HTML page with all of them and with every claim."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from capsella.environment import environment, hardware, versions
from capsella.errors import CapsellaError, pluralize
from capsella.evaluation import points
from capsella.experiments.reproduce.entries import Entry
from capsella.experiments.reproduce.findings import RULE, Answer, Finding, judge, state_of
from capsella.files import alone_in, read_json, write_json, write_text
from capsella.papers.published import paper_of
from capsella.papers.table_types import cells_with_caveats
from capsella.report.figures import ForestLine, forest_figure, write_figure
from capsella.report.pages import data_uri, render_page

PAPERS = {
    "sabour2017": "Sabour, Frosst, Hinton 2017: Dynamic routing between capsules",
    "hinton2018": "Hinton, Sabour, Frosst 2018: Matrix capsules with EM routing",
    "heinsen2019": "Heinsen 2019: An algorithm for routing capsules in all domains",
    "ribeiro2020": "De Sousa Ribeiro, Leontidis, Kollias 2020: Capsule routing via variational Bayes",
    "hahn2019": "Hahn, Pyeon, Kim 2019: Self-routing capsule networks",
    "tsai2020": "Tsai, Srivastava, Goh, Salakhutdinov 2020: Capsules with inverted dot-product attention routing",
    "zhao2021": "Zhao, Cheng 2021: Capsule networks with non-iterative cluster routing",
    "forslov2018": "Forslöv 2018: Capsule networks for blood cells",
}
BUDGETS = {
    "small": "Every network is trained for minutes only, so do not compare these numbers with published ones; each "
    "cell is marked.",
    "medium": "Trainings are shorter than the papers', and much longer than those of the small budget. What differs is "
    "noted under each table. A network that still learned when its training ended is marked in its cell, except with "
    "a cosine schedule, which hides it.",
    "full": "Every network is trained for as long as its recipe says.",
}


def reproduce(
    folder: Path, entries: Sequence[Entry], missing: Mapping[str, str], command: str, console: Console
) -> Path:
    """Make table after table and figure after figure, and rewrite the page after each; return its path.

    A table that cannot be made, e.g. for lack of memory, does not stop the others. Interrupted runs continue from
    their checkpoints.

    Args:
        folder: the folder of report.html and findings.json.
        entries: tables and figures to make.
        missing: why others are left out, by name.
        command: the command line.
        console: where progress is printed.

    Raises:
        CapsellaError: another process uses the folder, a run folder holds a run of another recipe, or the disk is
            full.
    """
    problems: dict[str, str] = {}
    with alone_in(folder):
        for task in (task for entry in entries for row in entry.rows for task in entry.tasks(row)):
            task.files.check_recipe(task.recipe)
        for number, entry in enumerate(entries, 1):
            console.print(f"{entry.name} ({number} of {len(entries)})", markup=False, soft_wrap=True)
            try:
                entry.published.run(entry.folder, tuple(range(entry.seeds)), entry.command, console)
            except (CapsellaError, ValueError) as error:
                problems[entry.name] = str(error)
                console.print(f"could not make {entry.name}: {error}", markup=False, soft_wrap=True)
            page = _write_page(folder, entries, missing, problems, command)
    return page


def _write_page(
    folder: Path, entries: Sequence[Entry], missing: Mapping[str, str], problems: Mapping[str, str], command: str
) -> Path:
    """Write report.html and findings.json; return the path of the page."""
    findings, made_with = judge(entries, missing), environment()
    write_json(folder / "findings.json", {"rule": RULE, "findings": [finding.to_dict() for finding in findings]})
    papers: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        papers.setdefault(paper_of(entry.name), []).append(_section(entry, problems.get(entry.name)))
    made = sum(entry.numbers.exists() for entry in entries)
    page = render_page(
        "capsella.experiments.reproduce",
        "report.html.jinja",
        title="Capsule networks, reproduced",
        headline=_headline(findings),
        budget=BUDGETS[entries[0].budget],
        findings=findings,
        forest=_forest(findings, folder),
        points=points,
        rule=RULE,
        papers=[(paper, PAPERS.get(paper, paper), sections) for paper, sections in papers.items()],
        missing=missing,
        state=f"{made} of {len(entries)} tables and figures are made.",
        facts={
            "command": command,
            "machine": f"{hardware(made_with)}, {made_with['cores']} cores",
            "versions": f"{versions(made_with)}, commit {made_with['commit']}, Python {made_with['python']}",
        },
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def _forest(findings: Sequence[Finding], folder: Path) -> str | None:
    """Draw findings.png, and return it for the page; None if nothing was compared."""
    lines = [
        ForestLine(
            label=finding.claim.text,
            gain=100 * finding.gain.estimate,
            low=100 * finding.gain.low,
            high=100 * finding.gain.high,
            p_value=None if finding.not_tested else finding.p_value,
        )
        for finding in findings
        if finding.gain is not None
    ]
    return write_figure(forest_figure(lines), folder / "findings.png") if lines else None


def _headline(findings: Sequence[Finding]) -> str:
    if not findings:
        return "No claim is tested for these papers."
    counts = [f"{sum(finding.answer == answer for finding in findings)} {answer}" for answer in get_args(Answer)]
    return f"{pluralize(len(findings), 'claim')} of the papers: {', '.join(counts)}."


def _section(entry: Entry, problem: str | None) -> dict[str, Any]:
    """Return the template values of an entry, from its JSON; `problem` is why it could not be made.

    In them, rows are lists of cells: text and caveat, e.g. the state of the training. Runs are the commands that
    trained the rows.
    """
    results = entry.results()
    values = read_json(entry.numbers) if entry.numbers.exists() else {}
    texts = [f"Images: {entry.source}, in place of the paper's." if entry.source else ""]
    states = {slug: state_of(entry, slug, runs) for slug, runs in results.items()}
    return {
        "name": entry.name,
        "title": entry.published.title,
        "command": entry.command,
        "texts": [text for text in (*texts, values.get("measured", ""), values.get("note", "")) if text],
        "problem": problem or ("" if values else "Not made yet."),
        "heads": values.get("heads", []),
        "labels": values.get("labels", 0),
        "rows": cells_with_caveats(values, states) if "rows" in values and "heads" in values else [],
        "pictures": [data_uri(path.read_bytes(), "image/png") for path in entry.pictures(values)],
        "runs": [(slug, runs[0]["command"]) for slug, runs in results.items() if runs],
    }
