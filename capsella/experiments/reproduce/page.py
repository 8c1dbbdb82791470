"""The page of a reproduction: one HTML file with every table, figure, learning curve and claim."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsella.environment import environment, hardware, versions
from capsella.errors import CapsellaError, pluralize
from capsella.evaluation import accuracy_interval, points
from capsella.experiments import CorrectnessTable, Results, format_duration
from capsella.experiments.reproduce.findings import RULE, Answer, Finding, state_of
from capsella.experiments.reproduce.plan import Entry
from capsella.files import read_json, write_json, write_text
from capsella.papers.published import paper_of
from capsella.papers.table_types import cells_with_caveats, ours_columns
from capsella.report.figures import learning_figure, write_figure
from capsella.report.forest import ForestLine, forest_figure
from capsella.report.pages import data_uri, render_page
from capsella.training import RunFolder

if TYPE_CHECKING:
    from capsella.experiments.reproduce.run import Reproduction

CURVES = 7  # rows in one picture of learning curves
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
ANSWERS: dict[Answer, str] = {
    "supports": "supported",
    "contradicts": "contradicted",
    "cannot tell": "open",
    "not tested": "not tested",
}
BUDGETS = {
    "small": "Every network is trained for minutes only, so do not compare these numbers with published ones; each "
    "cell is marked.",
    "medium": "Trainings are shorter than the papers', and much longer than those of the small budget. What differs is "
    "noted under each table. A network that still learned when its training ended is marked in its cell, except with "
    "a cosine schedule, which hides it.",
    "full": "Every network is trained for as long as its recipe says.",
}


def write_page(reproduction: "Reproduction") -> Path:
    """Write report.html and findings.json into the folder of a reproduction; return the path of the page.

    Raises:
        CapsellaError: metrics or results of a run cannot be read, or the disk is full.
    """
    folder, entries, findings = reproduction.folder, reproduction.entries, reproduction.findings()
    write_json(folder / "findings.json", {"rule": RULE, "findings": [finding.to_dict() for finding in findings]})
    papers: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        section = _section(entry, reproduction.seeds, reproduction.problems.get(entry.name))
        papers.setdefault(paper_of(entry.name), []).append(section)
    page = render_page(
        "capsella.experiments.reproduce",
        "report.html.jinja",
        title="Capsule networks, reproduced",
        headline=_headline(findings),
        budget=BUDGETS[entries[0].budget] if entries else "",
        findings=findings,
        forest=_forest(findings, folder),
        points=points,
        rule=RULE,
        papers=[(paper, PAPERS.get(paper, paper), sections) for paper, sections in papers.items()],
        missing=reproduction.missing,
        state=_state(reproduction),
        left_out=_left_out(reproduction),
        facts=_machine(reproduction),
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
    counts = [f"{sum(finding.answer == answer for finding in findings)} {text}" for answer, text in ANSWERS.items()]
    text = f"{pluralize(len(findings), 'claim')} of the papers: {', '.join(counts)}."
    stand_ins = sum(finding.source is not None for finding in findings)
    return text + (f" {stand_ins} of them on images that stand in for the paper's." if stand_ins else "")


def _state(reproduction: "Reproduction") -> str:
    plan, given_up = reproduction.plan, (*reproduction.late, *reproduction.too_large)
    trainings = (*plan.over, *plan.runs, *plan.left_out)
    over = sum(training.task.is_finished for training in trainings)
    to_come = [training for training in plan.runs if not training.task.is_finished and training not in given_up]
    text = f"{over} of {pluralize(len(trainings), 'run')} are finished."
    left = sum(training.remaining for training in to_come)
    return f"{text} Planned: {format_duration(left)} more." if to_come else text


def _left_out(reproduction: "Reproduction") -> dict[str, list[tuple[str, str]]]:
    """Return the runs that have no result and will get none, with their durations, by reason."""
    plan = reproduction.plan
    groups = {
        "They did not fit into the hours": plan.left_out,
        "Other runs took longer than planned": reproduction.late,
        "They ran out of memory": reproduction.too_large,
        "Their training diverged": [run for run in (*plan.over, *plan.runs) if run.task.files.has_diverged],
    }
    return {
        why: [(str(training), format_duration(training.seconds)) for training in trainings]
        for why, trainings in groups.items()
        if trainings
    }


def _machine(reproduction: "Reproduction") -> dict[str, str]:
    made_with, hours = environment(), reproduction.plan.hours
    return {
        "command": reproduction.command,
        "hours": "no limit" if hours is None else f"{hours:g}",
        "seeds": f"{reproduction.seeds} for rows that a claim compares, 1 for the others",
        "machine": f"{hardware(made_with)}, {made_with['cores']} cores",
        "versions": f"{versions(made_with)}, commit {made_with['commit']}, Python {made_with['python']}",
    }


def _section(entry: Entry, seeds: int, problem: str | None) -> dict[str, Any]:
    """Return the template values of an entry, from the files in its folder; `problem` is why it could not be made.

    In them, rows are lists of cells: text, caveat and 95 % interval; runs are the commands that trained the rows.
    """
    results: Results = {row.slug: entry.tested(row, seeds) for row in entry.rows}
    values = read_json(entry.numbers) if entry.numbers.exists() else {}
    if not values and problem is None:
        needed = "all its rows have" if entry.published.requires_common_seeds else "one of its rows has"
        problem = f"Not made yet: {needed} to be trained first."
    stand_in = f"Images: {entry.source}, in place of the paper's." if entry.source else ""
    texts = [stand_in, values.get("measured", ""), values.get("note", "")]
    return {
        "name": entry.name,
        "title": entry.published.title,
        "command": entry.command(seeds),
        "texts": [text for text in texts if text],
        "problem": problem or "",
        "heads": values.get("heads", []),
        "labels": values.get("labels", 0),
        "rows": _cells(entry, values, results) if "rows" in values and "heads" in values else [],
        "pictures": [data_uri(path.read_bytes(), "image/png") for path in entry.pictures(values)],
        "curves": [] if entry.is_figure else _curves(entry, results, _names(values)),
        "runs": [(slug, runs[0]["command"]) for slug, runs in results.items() if runs],
    }


def _cells(entry: Entry, values: Mapping[str, Any], results: Results) -> list[list[tuple[str, str, str]]]:
    """Return every cell as its text, its caveat (e.g. the state of its training) and its interval."""
    states = {slug: state_of(entry, slug, runs) for slug, runs in results.items()}
    ours, rows = ours_columns(values), []
    for row, cells in zip(values["rows"], cells_with_caveats(values, states), strict=True):
        intervals = dict(zip(ours, _intervals(row, len(ours)), strict=False))
        rows.append([(text, caveat, intervals.get(column, "")) for column, (text, caveat) in enumerate(cells)])
    return rows


def _intervals(row: Mapping[str, Any], columns: int) -> list[str]:
    """Return the intervals of a row's errors over seeds and test images; none if its runs do not have them."""
    runs = row.get("runs", [])
    if not isinstance(runs, list):  # before an attack a table has the runs of several networks, by name
        return []
    tests = [[run[key] for run in runs] for key in row.get("keys", ["test"])] if runs else []
    if not tests or len(tests) != columns:
        return []
    try:
        intervals = [accuracy_interval(*CorrectnessTable.from_tests(of_column)) for of_column in tests]
    except (CapsellaError, ValueError):
        return []
    return [f"{100 * (1 - interval.high):.2f}–{100 * (1 - interval.low):.2f}" for interval in intervals]


def _names(values: Mapping[str, Any]) -> dict[str, str]:
    """Return each slug's label in the table, with the slug if a row has several; an empty dict if labels repeat."""
    names: dict[str, str] = {}
    for row in values.get("rows", []):
        label = ", ".join(text for text in map(str, row["cells"][: values.get("labels", 0)]) if text != "–")
        slugs = row.get("slugs", [])
        names |= {slug: label if len(slugs) == 1 else f"{label} ({slug})" for slug in slugs}
    return names if len(set(names.values())) == len(names) else {}


def _curves(entry: Entry, results: Results, names: Mapping[str, str]) -> list[str]:
    """Return pictures of errors against epochs, a few rows in each."""
    rows, pictures = [row for row in entry.rows if results[row.slug]], []
    for number, start in enumerate(range(0, len(rows), CURVES)):
        tables = {
            names.get(row.slug, row.slug): [
                RunFolder(row.folder(entry.folder, run["seed"])).read_metrics() for run in results[row.slug]
            ]
            for row in rows[start : start + CURVES]
        }
        training, validation = (
            {row: [table[column] for table in of_row] for row, of_row in tables.items()}
            for column in ("train_error", "validation_error")
        )
        figure = learning_figure(training, validation, {row: f"C{n}" for n, row in enumerate(tables)})
        pictures.append(write_figure(figure, entry.folder / "figures" / f"{entry.name}-curves{number}.png"))
    return pictures
