"""The page of a reproduction: one HTML file with every table, figure, curve and claim in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsella.environment import environment, hardware
from capsella.errors import pluralize
from capsella.experiments import format_duration
from capsella.files import write_json, write_text
from capsella.papers.published import CLAIMS, paper_of
from capsella.report.pages import render_page
from capsella.reproduce.jobs import Job
from capsella.reproduce.night import Night
from capsella.reproduce.plan import Plan
from capsella.reproduce.section import Section, section_of
from capsella.reproduce.verdicts import RULE, Answer, Verdict, judge

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
ANSWERS: dict[Answer, str] = {"supports": "supported", "contradicts": "contradicted", "cannot tell": "open"}
BUDGETS = {
    "small": "Every network is trained for minutes only, so no number here is to be held against a published one: each "
    "says so in its cell.",
    "medium": "Trainings are shorter than the papers', and much longer than the small budget's. What differs "
    "stands under each table. A network that still learned when its training ended says so in its cell; not where its "
    "rate fell to nothing along a cosine, which hides it.",
    "full": "Every network is trained as long as its recipe has it.",
}


@dataclass(frozen=True)
class Reproduction:
    """All that the page shows.

    night: what it has made, and could not. missing: why other tables and figures are left out, by name. jobs: all runs.
    plan: of this call. command: that was called.
    """

    night: Night
    missing: Mapping[str, str]
    jobs: Sequence[Job]
    plan: Plan
    command: str


def write_page(found: Reproduction, folder: Path) -> Path:
    """Write report.html and claims.json into `folder`; returns the path of the page.

    Raises:
        CapsellaError: unreadable metrics or results of a run; no space on the disk.
    """
    verdicts = verdicts_of(found)
    write_json(folder / "claims.json", {"rule": RULE, "claims": [_claim_values(verdict) for verdict in verdicts]})
    papers: dict[str, list[Section]] = {}
    for entry in found.night.entries:
        papers.setdefault(entry.paper, []).append(
            section_of(entry, found.night.seeds, found.night.problems.get(entry.name))
        )
    page = render_page(
        "capsella.reproduce",
        "report.html.jinja",
        title="Capsule networks, reproduced",
        headline=_headline(verdicts),
        budget=BUDGETS[found.night.entries[0].budget] if found.night.entries else "",
        verdicts=verdicts,
        answers=ANSWERS,
        percent=_percent,
        rule=RULE,
        papers=[(paper, PAPERS.get(paper, paper), sections) for paper, sections in papers.items()],
        missing=found.missing,
        state=_state(found),
        left_out=_left_out(found),
        facts=_facts(found),
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def verdicts_of(found: Reproduction) -> list[Verdict]:
    """Of every claim of the papers on the page."""
    entries = {entry.name: entry for entry in found.night.entries}
    papers = {paper_of(name) for name in (*entries, *found.missing)}
    claims = [claim for claim in CLAIMS if paper_of(claim.where) in papers]
    return [judge(claim, entries.get(claim.where), found.night.seeds) for claim in claims]


def _headline(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "No claim is tested for these papers."
    counts = [
        f"{sum(verdict.answer == answer for verdict in verdicts)} {ANSWERS[answer]}"
        for answer in ("supports", "contradicts", "cannot tell")
    ]
    elsewhere = sum(verdict.source is not None for verdict in verdicts)
    text = f"{pluralize(len(verdicts), 'claim')} of the papers: {', '.join(counts)}."
    return text + (f" {elsewhere} of them on images that stand in for the paper's." if elsewhere else "")


def _percent(share: float) -> str:
    """A share as points of per cent with a sign."""
    return f"{100 * share:+.2f}".replace("-", "−")


def _state(found: Reproduction) -> str:
    """How far the trainings are, in a sentence."""
    over = sum(job.is_over for job in found.jobs)
    text = f"{over} of {pluralize(len(found.jobs), 'run')} are finished."
    open_runs = [
        planned
        for planned in found.plan.runs
        if not planned.job.is_over and planned not in (*found.night.late, *found.night.too_large)
    ]
    if open_runs:
        text += f" Planned: {format_duration(sum(planned.seconds for planned in open_runs))} more."
    return text


def _left_out(found: Reproduction) -> dict[str, list[tuple[str, str, str]]]:
    """Runs without a result that are not to come, by the reason: each row with its seeds, and how long a run takes."""
    groups: dict[str, list[tuple[Job, float | None]]] = {
        "They did not fit into the hours": [(one.job, one.seconds) for one in found.plan.left_out],
        "Other runs took longer than planned": [(one.job, one.seconds) for one in found.night.late],
        "The memory is not enough": [(one.job, one.seconds) for one in found.night.too_large],
        "Their training diverged": [(job, None) for job in found.jobs if job.run.has_diverged],
    }
    rows: dict[str, list[tuple[str, str, str]]] = {}
    for why, runs in groups.items():
        of_row: dict[str, list[tuple[int, float | None]]] = {}
        for job, seconds in runs:
            if seconds is None or not job.is_over:
                of_row.setdefault(job.row.cost, []).append((job.seed, seconds))
        for cost, each in of_row.items():
            seconds = each[-1][1]
            seeds = ", ".join(str(seed) for seed, _ in each)
            rows.setdefault(why, []).append((cost, seeds, "–" if seconds is None else format_duration(seconds)))
    return rows


def _facts(found: Reproduction) -> dict[str, str]:
    made_with = environment()
    hours = "no limit" if found.plan.hours is None else f"{found.plan.hours:g}"
    return {
        "command": found.command,
        "hours": hours,
        "seeds": f"at most {found.night.seeds} of a row that a claim compares, one of the others",
        "machine": f"{hardware(made_with)}, {made_with['cores']} cores",
        "versions": f"capsella {made_with['capsella']} ({made_with['commit']}), torch {made_with['torch']}, "
        f"Python {made_with['python']}",
    }


def _claim_values(verdict: Verdict) -> dict[str, Any]:
    """For claims.json."""
    claim = verdict.claim
    return {
        "claim": claim.text,
        "where": claim.where,
        "rows": list(verdict.rows),
        "paper_error_percent": claim.paper,
        "error_percent": verdict.errors,
        "marks": list(verdict.marks),
        "stand_in": verdict.source,
        "gain": None if verdict.gain is None else verdict.gain.to_dict(),
        "answer": verdict.answer,
        "why": verdict.why,
    }
