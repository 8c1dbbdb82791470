"""A comparison from its plan to its report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.compare.measure import Measured, check_unseen, correct_of, measure, robustness_of_best, write_predictions
from capsella.compare.plan import Plan, begin
from capsella.compare.report import Findings, protocol, tested_before, write_comparison
from capsella.compare.trained import Trained, train_all
from capsella.compare.verdict import NetworkResult, TestSetting, judge
from capsella.compare.words import phrase
from capsella.data import single_images
from capsella.environment import environment
from capsella.experiments import was_still_learning
from capsella.files import alone_in, write_json


def compare(plan: Plan, console: Console) -> tuple[Findings, Path]:
    """Train what is missing, test, and write compare.json, test_predictions.csv and report.html.

    Returns:
        What was found, and the path of the report.

    Raises:
        CapsellaError: every network of a kind diverged; a run of another recipe is in the way; another process is at
            work in the folder; no space left.
    """
    with alone_in(plan.folder):
        return _compare(plan, console)


def _compare(plan: Plan, console: Console) -> tuple[Findings, Path]:
    begin(plan)
    networks, champions = train_all(plan, console)
    console.print("testing: accuracy, changed images, latency", markup=False)
    images = single_images(plan.splits.test, "comparisons")
    check_unseen(networks, plan.splits)
    best = [champions["capsules"], champions["CNN"]]
    measured = measure(networks, best, images)
    pair = _measured(measured, best[0]), _measured(measured, best[1])
    setting = TestSetting(
        images.labels.numpy(),
        images.classes,
        plan.options.latency_limit,
        plan.epochs,
        [network.name for network in measured if _still_learned(plan, network.trained)],
        pair[0].best_evaluation.groups,
        plan.undecidable,
        len(plan.undecidable) == len(plan.candidates),
    )
    verdict = judge(_result_of(pair[0]), _result_of(pair[1]), setting)
    curves = robustness_of_best(pair, plan.splits.name)
    before = tested_before(plan.folder, plan.options.asked_seeds)
    words = phrase(verdict, not_compared(plan, measured))
    found = Findings(plan, measured, pair, verdict, words, curves, environment(), before)
    write_predictions(plan.folder / "test_predictions.csv", measured, images)
    write_json(plan.folder / "compare.json", values(found))
    return found, write_comparison(found)


def _still_learned(plan: Plan, network: Trained) -> bool:
    return was_still_learning(plan.recipe(network.candidate), [run.folder for run in network.by_seed.values()])


def values(found: Findings) -> dict[str, Any]:
    """compare.json: every number of the report, and what it was measured with; differences as shares."""
    plan = found.plan
    return {
        "recommended_run": _recommended_run(found),
        "options": plan.options.to_dict(),
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "protocol": protocol(plan, found.tested_before),
        "tested_seeds": [*map(list, found.tested_before), list(plan.options.asked_seeds)],
        "images": {split: len(part) for split, part in plan.splits.named().items()},
        "classes": list(plan.splits.classes),
        "environment": dict(found.environment),
        "verdict": {
            **found.verdict.to_dict(),
            "headline": found.words.headline,
            "sentences": found.words.sentences,
        },
        "networks": [one.to_dict() for one in found.measured],
        "not_compared": not_compared(plan, found.measured),
        "robustness_of_the_best_seeds": found.robustness.to_dict(),
    }


def _recommended_run(found: Findings) -> str | None:
    """Return the folder of the network to take, within the comparison's; None if none is recommended."""
    for measured in found.champions:
        if measured.name == found.verdict.recommended:
            run = measured.trained.by_seed[measured.trained.best_seed]
            return str(run.folder.relative_to(found.plan.folder))
    return None


def not_compared(plan: Plan, measured: Sequence[Measured]) -> list[str]:
    """The networks of the plan that diverged with some seed."""
    return sorted({one.network for one in plan.candidates} - {one.name for one in measured})


def _measured(measured: list[Measured], trained: Trained) -> Measured:
    return next(one for one in measured if one.trained is trained)


def _result_of(network: Measured) -> NetworkResult:
    share = max((share for share, runs in network.by_share.items() if runs), default=None)
    on_share = {} if share is None else network.by_share[share]
    return NetworkResult(
        network.name,
        network.correct,
        list(network.evaluations).index(network.trained.best_seed),
        (network.latency.p50, network.latency.p95),
        network.trained.candidate.parameters,
        network.changed,
        None if share is None else (share, correct_of(on_share)),
        tuple(row for row, seed in enumerate(network.evaluations) if seed in on_share),
    )
