"""Findings: whether measured rows support each claim that one network has a lower error than another."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy
from jaxtyping import Float

from capsella.errors import CapsellaError
from capsella.evaluation import Interval, holm_adjusted, pooled_seed_variance, rank_test
from capsella.experiments import CorrectnessTable
from capsella.experiments.reproduce.entries import Entry
from capsella.papers.published import CLAIMS, paper_of
from capsella.papers.table_types import SHORT, Claim, MatchedErrorTable
from capsella.training import Recipe, RunFolder
from capsella.training.progress import best_validation

Answer = Literal["supported", "contradicted", "no difference detected", "not tested"]
LEVEL = 0.05
STILL_FALLING = 0.1  # a curve still falls if its last third accounts for more than this fraction of its whole fall
MIN_SEEDS = 2
RULE = (
    "A claim says that one row has a lower error than another. Their errors are compared on the same test images. If "
    "a claim names a row at several learning rates, the one with the lowest validation error counts, and of equal "
    "ones the one with the lowest loss. The difference has a 95 % interval over test images (for smallNORB over "
    "objects) and seeds, whose variance is pooled over the rows of the table. A claim is supported or contradicted if "
    "the p-value, adjusted for all tested claims (Holm 1979), is below 0.05; otherwise no difference was detected. It "
    f"is not tested if a row is missing, has fewer than {MIN_SEEDS} seeds or one that diverged, is far from "
    "convergence, or missed the error at which networks are compared. Far from convergence is a short training, or "
    "one whose training loss or error fell over its last third by more than a tenth of its whole fall. With a cosine "
    "schedule every curve falls at the end, so that is not asked."
)


@dataclass(frozen=True)
class Finding:
    """The outcome of a claim.

    rows: slugs of the two compared rows, the one claimed better first. not_tested: why the claim was not tested, if
    so. errors: error rates of both rows in per cent, means over seeds. gain: accuracy of the first row minus that of
    the second. p_value: adjusted for all claims that are judged together. objects_p_value: p-value of a rank test over
    objects, if there are any. images: training images that the first row's networks saw. caveats: of the table, e.g.
    "few images". source: the images used in place of the paper's, if any.
    """

    claim: Claim
    rows: tuple[str, str]
    not_tested: str = ""
    errors: tuple[float, float] | None = None
    gain: Interval | None = None
    p_value: float = 1.0
    objects_p_value: float | None = None
    images: int | None = None
    caveats: tuple[str, ...] = ()
    source: str | None = None

    @property
    def answer(self) -> Answer:
        """The outcome of the claim."""
        if self.not_tested or self.gain is None:
            return "not tested"
        if self.p_value >= LEVEL:
            return "no difference detected"
        return "supported" if self.gain.estimate > 0 else "contradicted"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        gain = None if self.gain is None else self.gain.to_dict() | {"detectable": self.gain.detectable}
        return {
            "claim": self.claim.text,
            "where": self.claim.where,
            "rows": list(self.rows),
            "paper_error_percent": self.claim.paper,
            "error_percent": self.errors,
            "gain": gain,
            "p_holm": self.p_value,
            "p_objects": self.objects_p_value,
            "images": self.images,
            "caveats": list(self.caveats),
            "stand_in": self.source,
            "answer": self.answer,
            "not_tested": self.not_tested,
        }


def judge(entries: Sequence[Entry], missing: Iterable[str], claims: Sequence[Claim] | None = None) -> list[Finding]:
    """Judge every claim of the entries' papers together. missing: names of tables and figures that were left out."""
    by_name = {entry.name: entry for entry in entries}
    papers = {paper_of(name) for name in (*by_name, *missing)}
    claims = [claim for claim in claims or CLAIMS if paper_of(claim.where) in papers]
    findings = [judge_claim(claim, by_name.get(claim.where)) for claim in claims]
    tested = [at for at, finding in enumerate(findings) if finding.answer != "not tested"]
    for at, p_value in zip(tested, holm_adjusted([findings[at].p_value for at in tested]), strict=True):
        findings[at] = replace(findings[at], p_value=p_value)
    return findings


def judge_claim(claim: Claim, entry: Entry | None) -> Finding:
    """Compare the two rows of one claim. entry: its table or figure; None if that was left out."""
    rows = (claim.better, claim.worse)
    if entry is None:
        return Finding(claim, rows, f"{claim.where} was left out.")
    results, key = _results(entry), _key(claim, entry)
    options = [
        _trained_rates((slug, *others), entry)
        for slug, others in ((claim.better, claim.better_rates), (claim.worse, claim.worse_rates))
    ]
    if missing := [slug for slugs in options for slug in slugs if not results.get(slug)]:
        return Finding(claim, rows, f"Not run: {' and '.join(missing)}.")
    rows = _best_rate(options[0], results), _best_rate(options[1], results)
    runs = [results[slug] for slug in rows]
    try:
        better, worse = (CorrectnessTable.from_tests([run[key] for run in of_row]) for of_row in runs)
        every = [CorrectnessTable.from_tests([run[key] for run in of_row]) for of_row in results.values() if of_row]
        gain = better.difference_from(worse, seed_variance=pooled_seed_variance(table.correct for table in every))
    except (CapsellaError, ValueError, KeyError) as error:
        return Finding(claim, rows, f"Not measured on the same images: {error}.")
    return Finding(
        claim,
        rows,
        _why_not_tested(rows, entry, runs),
        errors=(100 * (1 - float(better.correct.mean())), 100 * (1 - float(worse.correct.mean()))),
        gain=gain,
        p_value=gain.p_value,
        objects_p_value=None if better.groups is None else rank_test(better.correct, worse.correct, better.groups),
        images=runs[0][0]["training"].get("best", {}).get("images_seen"),
        caveats=tuple(filter(None, [entry.published.caveat])),
        source=entry.source,
    )


def state_of(entry: Entry, slug: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of a row's trainings: "short", "still learning", "not reached", or ""."""
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


def _why_not_tested(slugs: Sequence[str], entry: Entry, runs: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Return why the difference does not count; empty if it does."""
    states = {slug: state for slug, of_row in zip(slugs, runs, strict=True) if (state := state_of(entry, slug, of_row))}
    if states:
        return f"Far from convergence: {', '.join(f'{slug} ({state})' for slug, state in states.items())}."
    tasks = [task for row in entry.rows if row.slug in slugs for task in entry.tasks(row)]
    if gone := [task.folder.name for task in tasks if task.files.has_diverged]:
        return f"Diverged: {', '.join(gone)}."
    fewest = min(map(len, runs))
    return f"{fewest} seed of a row; at least {MIN_SEEDS} are needed." if fewest < MIN_SEEDS else ""


def _trained_rates(slugs: Sequence[str], entry: Entry) -> list[str]:
    """Return the slugs, one per learning rate of a row, that are in the table and whose first seed did not diverge.

    Return only the first slug if none is in the table, and all that are in it if all diverged.
    """
    rows = {row.slug: row for row in entry.rows if row.slug in slugs}
    known = [slug for slug in slugs if slug in rows] or [slugs[0]]
    diverged = {slug for slug, row in rows.items() if RunFolder(row.folder(entry.folder, 0)).has_diverged}
    return [slug for slug in known if slug not in diverged] or known


def _best_rate(slugs: Sequence[str], results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the slug with the lowest mean validation error over seeds; the loss breaks ties."""

    def rank(slug: str) -> tuple[float, float]:
        error, loss = np.mean([best_validation(run["training"]) for run in results[slug]], axis=0)
        return float(error), float(loss)

    return slugs[0] if len(slugs) == 1 else min(slugs, key=rank)


def _results(entry: Entry) -> dict[str, list[dict[str, Any]]]:
    """Return the runs, with the tests on further images that a table of matched errors has measured."""
    results = entry.results()
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


def was_still_learning(recipe: Recipe, runs: Sequence[Path]) -> bool:
    """Return whether training loss or error, averaged over `runs` (one per seed), still fell at the end of training.

    The error counts too because a loss whose margin widens may rise while the network learns. False with a cosine
    schedule: its learning rate ends at zero, which makes every curve fall.

    Raises:
        CapsellaError: metrics.csv of a run is missing or damaged.
    """
    if recipe.optimizer.schedule == "cosine":
        return False
    tables = [RunFolder(run).read_metrics() for run in runs]
    return any(is_still_falling([table[name] for table in tables]) for name in ("train_loss", "train_error"))


def is_still_falling(seeds: Sequence[Float[np.ndarray, " epochs"]]) -> bool:
    """Return whether a curve over epochs, averaged over seeds, still fell clearly when it ended.

    A line through its last third, at least three epochs, must fall by more than a tenth of the whole fall, and not by
    chance (one-sided t-test of the slope, 5 %). False for fewer than three epochs.
    """
    curve = np.stack([seed[: min(map(len, seeds))] for seed in seeds]).mean(0)
    last = max(3, len(curve) // 3)
    if len(curve) < last or not np.isfinite(curve).all() or np.ptp(curve[-last:]) == 0:
        return False
    line = scipy.stats.linregress(np.arange(last), curve[-last:], alternative="less")
    end = line.intercept + line.slope * (last - 1)
    return bool(line.pvalue < 0.05 and -line.slope * last > STILL_FALLING * max(curve[0] - end, 0))
