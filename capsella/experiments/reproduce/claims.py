"""A rule that decides whether measured rows support a paper's claim."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from capsella.errors import CapsellaError
from capsella.evaluation import Interval, interval_over_seeds, points
from capsella.experiments import CorrectnessTable, was_still_learning
from capsella.experiments.reproduce.plan import Entry
from capsella.papers.published import CLAIMS, paper_of
from capsella.papers.table_types import SHORT, Claim, MatchedErrorTable
from capsella.training import Recipe, RunFolder
from capsella.training.validation import best_validation

Answer = Literal["supports", "contradicts", "cannot tell"]
MIN_SEEDS = 2
RULE = (
    "A claim says that one row has a lower error than another. Both networks see the same test images, and their "
    "errors are compared image by image. If a claim names a row at several learning rates, the one with the lowest "
    "validation error counts, and of equal ones the one with the lowest loss. The difference has a 95 % interval over "
    "test images and seeds together (two crossed random effects); for smallNORB over toys, because views of one toy "
    "are not independent. The numbers support the claim if the whole interval is on the paper's side of 0, and "
    "contradict it if it is on the other side. They cannot tell if the interval contains 0; if the one over seeds "
    f"alone does (Welch's); if a row is missing, has fewer than {MIN_SEEDS} seeds, or one that diverged; if a network "
    "is far from convergence; or if networks that should be compared at one error did not all reach it. Far from "
    "convergence is a short training, or one whose training loss or error still fell at its end: over its last third "
    "by more than a tenth of all that it fell. With a cosine schedule every curve falls at the end, so that is not "
    "asked. Each claim is tested alone: chance would decide one of twenty in which there is nothing."
)


@dataclass(frozen=True)
class ClaimVerdict:
    """The outcome of a claim.

    rows: slugs of the two that were compared. why: the reason if they cannot tell. errors: of both rows in per cent,
    means over seeds. gain: by how much the better row's accuracy is higher, as a share; None if a row is missing.
    caveats: of the rows, e.g. "few images". source: the images that stand in for the paper's, if any.
    """

    claim: Claim
    rows: tuple[str, str]
    answer: Answer
    why: str = ""
    errors: tuple[float, float] | None = None
    gain: Interval | None = None
    caveats: tuple[str, ...] = ()
    source: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "claim": self.claim.text,
            "where": self.claim.where,
            "rows": list(self.rows),
            "paper_error_percent": self.claim.paper,
            "error_percent": self.errors,
            "caveats": list(self.caveats),
            "stand_in": self.source,
            "gain": None if self.gain is None else self.gain.to_dict(),
            "answer": self.answer,
            "why": self.why,
        }


def judge(
    entries: Sequence[Entry], missing: Iterable[str], seeds: int, claims: Sequence[Claim] | None = None
) -> list[ClaimVerdict]:
    """Judge every claim of the entries' papers. missing: names of tables and figures that are left out."""
    by_name = {entry.name: entry for entry in entries}
    papers = {paper_of(name) for name in (*by_name, *missing)}
    claims = [claim for claim in claims or CLAIMS if paper_of(claim.where) in papers]
    return [judge_claim(claim, by_name.get(claim.where), seeds) for claim in claims]


def judge_claim(claim: Claim, entry: Entry | None, seeds: int) -> ClaimVerdict:
    """Compare a claim with the runs of its table or figure; None if that was left out."""
    rows = (claim.better, claim.worse)
    if entry is None:
        return ClaimVerdict(claim, rows, "cannot tell", f"{claim.where} was left out.")
    results, key = _results(entry, seeds), _key(claim, entry)
    options = [
        _trained_rates((slug, *others), entry)
        for slug, others in ((claim.better, claim.better_rates), (claim.worse, claim.worse_rates))
    ]
    if missing := [slug for slugs in options for slug in slugs if not results.get(slug)]:
        return ClaimVerdict(claim, rows, "cannot tell", f"Not run: {' and '.join(missing)}.")
    rows = _best_rate(options[0], results), _best_rate(options[1], results)
    runs = [results[slug] for slug in rows]
    try:
        better, worse = (CorrectnessTable.from_tests([run[key] for run in of_row]) for of_row in runs)
        gain = better.difference_from(worse)
    except (CapsellaError, ValueError, KeyError) as error:
        return ClaimVerdict(claim, rows, "cannot tell", f"Not measured on the same images: {error}.")
    errors = 100 * (1 - float(better.correct.mean())), 100 * (1 - float(worse.correct.mean()))
    answer: Answer = "cannot tell"
    if not (why := _why_not_asked(rows, entry, runs, seeds)):
        answer, why = decide(gain, better.correct.mean(1), worse.correct.mean(1))
    caveats = tuple(dict.fromkeys(caveat for slug in rows if (caveat := entry.published.caveat(slug))))
    return ClaimVerdict(claim, rows, answer, why, errors, gain, caveats, entry.source)


def decide(
    gain: Interval, better: Float[np.ndarray, " seeds"], worse: Float[np.ndarray, " seeds"]
) -> tuple[Answer, str]:
    """Return the answer by the interval over images and seeds, and by that over seeds alone.

    Args:
        gain: over images and seeds.
        better, worse: the accuracy of each seed, as a share.

    >>> decide(Interval(0.02, 0.01, 0.03, 0.0, 0.0, 9.0), np.array([0.96, 0.97]), np.array([0.94, 0.95]))
    ('cannot tell', 'Over seeds alone the interval is −1.0 to +5.0 points, which contains 0.')
    """
    if gain.low <= 0 <= gain.high:
        return "cannot tell", "The interval contains 0."
    low, high = interval_over_seeds(better, worse)
    if low <= 0 <= high:
        return (
            "cannot tell",
            f"Over seeds alone the interval is {points(low)} to {points(high)} points, which contains 0.",
        )
    return ("supports", "") if gain.low > 0 else ("contradicts", "")


def state_of(entry: Entry, slug: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of a row's trainings: "short", "still learning", "not reached", or nothing."""
    if entry.budget == "small":
        return SHORT
    if not runs:
        return ""
    recipe = Recipe.from_dict(runs[0]["recipe"])
    if recipe.stop_at_error is not None:
        return "" if all(run["training"]["stopped"]["reached"] for run in runs) else "not reached"
    row = next(row for row in entry.rows if row.slug == slug)
    folders = [row.folder(entry.folder, run["seed"]) for run in runs]
    return "still learning" if was_still_learning(recipe, folders) else ""


def _why_not_asked(slugs: Sequence[str], entry: Entry, runs: Sequence[Sequence[Mapping[str, Any]]], seeds: int) -> str:
    """Return why the interval does not decide; empty if it does."""
    states = {slug: state for slug, of_row in zip(slugs, runs, strict=True) if (state := state_of(entry, slug, of_row))}
    if states:
        return f"Far from convergence: {', '.join(f'{slug} ({state})' for slug, state in states.items())}."
    folders = [row.folder(entry.folder, seed) for row in entry.rows if row.slug in slugs for seed in range(seeds)]
    if gone := [folder.name for folder in folders if RunFolder(folder).has_diverged]:
        return f"Diverged: {', '.join(gone)}; the other seeds would speak for the row."
    if min(map(len, runs)) < MIN_SEEDS:
        return f"{min(map(len, runs))} seed of a row; at least {MIN_SEEDS} are needed."
    return ""


def _trained_rates(slugs: Sequence[str], entry: Entry) -> list[str]:
    """Return a row and itself at the other rates that the table has, without those whose first seed diverged.

    Returns the row alone if it is not in the table, and all of them if all diverged.
    """
    rows = {row.slug: row for row in entry.rows if row.slug in slugs}
    known = [slug for slug in slugs if slug in rows] or [slugs[0]]
    diverged = {slug for slug, row in rows.items() if RunFolder(row.folder(entry.folder, 0)).has_diverged}
    return [slug for slug in known if slug not in diverged] or known


def _best_rate(slugs: Sequence[str], results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the rate with the lowest validation error, a mean over its seeds; then, with the lowest loss."""

    def rank(slug: str) -> tuple[float, float]:
        error, loss = np.mean([best_validation(run["training"]) for run in results[slug]], axis=0)
        return float(error), float(loss)

    return slugs[0] if len(slugs) == 1 else min(slugs, key=rank)


def _results(entry: Entry, seeds: int) -> dict[str, list[dict[str, Any]]]:
    """Return the runs with their tests on further images, which a table of matched errors has measured."""
    results = entry.results(seeds)
    if not isinstance(entry.published, MatchedErrorTable):
        return results
    rows = {row.slug: row for row in entry.rows}
    for slug, runs in results.items():
        for run in runs:
            files = RunFolder(rows[slug].folder(entry.folder, run["seed"]))
            for key in (test_set.key for test_set in entry.published.test_sets):
                if key not in run and (files.path / f"{key}.json").exists():
                    run[key] = files.read(key)
    return results


def _key(claim: Claim, entry: Entry) -> str:
    """Return the key under which a run holds the test that the claim is about."""
    if claim.on is None or not isinstance(entry.published, MatchedErrorTable):
        return "test"
    return next(test_set.key for test_set in entry.published.test_sets if test_set.head == claim.on)
