"""Whether measured rows support what a paper claims of them, by a rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from capsella.errors import CapsellaError
from capsella.evaluation import Interval
from capsella.evaluation.statistics import interval_over_seeds, points
from capsella.experiments import CorrectnessTable, was_still_learning
from capsella.papers.table_types import SHORT, Claim, MatchedErrorTable
from capsella.reproduce.entries import Entry
from capsella.training import Recipe, RunFolder
from capsella.training.validation import best_validation

Answer = Literal["supports", "contradicts", "cannot tell"]
FEWEST_SEEDS = 2
RULE = (
    "A claim says that one row errs less than another. Their errors are subtracted image by image, as both networks "
    "see the same test images. Where a claim names rows at several learning rates, the one counts that errs least on "
    "validation images, and of equal ones that with the least loss. The difference has a 95 % interval over test "
    "images and seeds together (two crossed random effects). Views of one toy are no independent images: of smallNORB "
    "the interval is over toys. "
    "The numbers support the claim where the whole interval is on the paper's side of 0, and "
    "contradict it where it is on the other side. They cannot tell where the interval holds 0, where that over seeds "
    "alone holds 0 (Welch's, wide where seeds are few), where a row is missing "
    f"or has fewer than {FEWEST_SEEDS} seeds or one that diverged, where a network is far from convergence, or where "
    "networks that should be compared at one error did not all reach it. Far from convergence is a short training, or "
    "one whose loss or error on the training images still fell clearly when it ended: over its last third by more than "
    "a tenth of all that it fell. Where the learning rate falls to nothing along a cosine, the end of a curve cannot "
    "tell, and is not asked. Each claim is tested alone: chance would decide one of twenty in which there is nothing."
)


@dataclass(frozen=True)
class Verdict:
    """What the numbers say of a claim.

    rows: slugs of the two that were compared. why: a sentence where they cannot tell. errors: of both rows in per cent,
    as means over seeds. gain: by how much the claim's better row errs less, as a share, with its interval; None where a
    row is missing. marks: what stands behind the errors, as "few images". source: of the images that stand in for the
    paper's, if any.
    """

    claim: Claim
    rows: tuple[str, str]
    answer: Answer
    why: str = ""
    errors: tuple[float, float] | None = None
    gain: Interval | None = None
    marks: tuple[str, ...] = ()
    source: str | None = None


def judge(claim: Claim, entry: Entry | None, seeds: int) -> Verdict:
    """Hold a claim against the runs of its table or figure; None where that was left out."""
    rows = (claim.better, claim.worse)
    if entry is None:
        return Verdict(claim, rows, "cannot tell", f"{claim.where} was left out.")
    results, key = _results(entry, seeds), _key(claim, entry)
    rates = [
        _that_trained((slug, *others), entry)
        for slug, others in ((claim.better, claim.better_rates), (claim.worse, claim.worse_rates))
    ]
    if missing := [slug for slugs in rates for slug in slugs if not results.get(slug)]:
        return Verdict(claim, rows, "cannot tell", f"Not run: {' and '.join(missing)}.")
    rows = _chosen(rates[0], results), _chosen(rates[1], results)
    sides = [results[slug] for slug in rows]
    try:
        better, worse = (CorrectnessTable.from_tests([run[key] for run in runs]) for runs in sides)
        gain = better.difference_from(worse)
    except (CapsellaError, ValueError, KeyError) as error:
        return Verdict(claim, rows, "cannot tell", f"Not measured on the same images: {error}.")
    errors = 100 * (1 - float(better.correct.mean())), 100 * (1 - float(worse.correct.mean()))
    if why := _open(rows, entry, sides, seeds):
        answer: Answer = "cannot tell"
    else:
        answer, why = decide(gain, better.correct.mean(1), worse.correct.mean(1))
    marks = dict.fromkeys(mark for slug in rows if (mark := entry.published.caveat(slug)))
    return Verdict(claim, rows, answer, why, errors, gain, tuple(marks), entry.source)


def _that_trained(slugs: Sequence[str], entry: Entry) -> list[str]:
    """A row, and itself at those other rates that the table has; without those at which the first seed diverged.

    The row alone where it is not in the table, and all of them where all diverged.
    """
    rows = {row.slug: row for row in entry.rows if row.slug in slugs}
    found = [slug for slug in slugs if slug in rows] or [slugs[0]]
    diverged = {slug for slug, row in rows.items() if RunFolder(row.folder(entry.folder, 0)).has_diverged}
    return [slug for slug in found if slug not in diverged] or found


def _chosen(slugs: Sequence[str], results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Which of a row's rates errs least on validation images, as a mean over its seeds; then, has the least loss."""

    def rank(slug: str) -> tuple[float, float]:
        error, loss = np.mean([best_validation(run["training"]) for run in results[slug]], axis=0)
        return float(error), float(loss)

    return slugs[0] if len(slugs) == 1 else min(slugs, key=rank)


def decide(
    gain: Interval, better: Float[np.ndarray, " seeds"], worse: Float[np.ndarray, " seeds"]
) -> tuple[Answer, str]:
    """The answer by the interval, and by that over seeds alone: few of them say little, whatever the images do.

    Args:
        gain: over images and seeds.
        better, worse: the accuracy of each seed, as a share.

    >>> decide(Interval(0.02, 0.01, 0.03, 0.0, 0.0, 9.0), np.array([0.96, 0.97]), np.array([0.94, 0.95]))
    ('cannot tell', 'Over seeds alone the interval is −1.0 to +5.0 points, which holds 0.')
    """
    if gain.low <= 0 <= gain.high:
        return "cannot tell", "The interval holds 0."
    low, high = interval_over_seeds(better, worse)
    if low <= 0 <= high:
        return "cannot tell", f"Over seeds alone the interval is {points(low)} to {points(high)} points, which holds 0."
    return ("supports", "") if gain.low > 0 else ("contradicts", "")


def state_of(entry: Entry, slug: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """What must stand in the cell of a row's number: "short", "still learning", "not reached", or nothing."""
    if entry.budget == "small":
        return SHORT
    if not runs:
        return ""
    recipe = Recipe.from_dict(runs[0]["recipe"])
    if recipe.stop_at_error is not None:
        return "" if all(run["training"]["stopped"]["reached"] for run in runs) else "not reached"
    row = next(row for row in entry.rows if row.slug == slug)
    return (
        "still learning" if was_still_learning(recipe, [row.folder(entry.folder, run["seed"]) for run in runs]) else ""
    )


def _open(slugs: tuple[str, str], entry: Entry, sides: Sequence[Sequence[Mapping[str, Any]]], seeds: int) -> str:
    """Why the interval is not asked, in a sentence; empty where it is."""
    states = {slug: state for slug, runs in zip(slugs, sides, strict=True) if (state := state_of(entry, slug, runs))}
    if states:
        return f"Far from where it is to be: {', '.join(f'{slug} ({state})' for slug, state in states.items())}."
    rows = [row for row in entry.rows if row.slug in slugs]
    runs = [RunFolder(row.folder(entry.folder, seed)) for row in rows for seed in range(seeds)]
    if gone := [run.path.name for run in runs if run.has_diverged]:
        return f"Diverged: {', '.join(gone)}; the other seeds would speak for the row."
    if min(map(len, sides)) < FEWEST_SEEDS:
        return f"{min(map(len, sides))} seed of a row, and at least {FEWEST_SEEDS} are needed."
    return ""


def _results(entry: Entry, seeds: int) -> dict[str, list[dict[str, Any]]]:
    """The runs with what they make of further sets of images, which a stopped table has measured."""
    results = entry.results(seeds)
    if not isinstance(entry.published, MatchedErrorTable):
        return results
    keys = [on.key for on in entry.published.test_sets]
    rows = {row.slug: row for row in entry.rows}
    for slug, runs in results.items():
        for run in runs:
            folder = RunFolder(rows[slug].folder(entry.folder, run["seed"]))
            run |= {key: folder.read(key) for key in keys if key not in run and (folder.path / f"{key}.json").exists()}
    return results


def _key(claim: Claim, entry: Entry) -> str:
    """Under which a run holds the test that the claim is about."""
    if claim.on is None or not isinstance(entry.published, MatchedErrorTable):
        return "test"
    return next(on.key for on in entry.published.test_sets if on.head == claim.on)
