"""Overlapping digits: does routing gain more on pairs of digits whose ink overlaps more?

The networks share the convolutions that Efficient-CapsNet's authors use for pairs, and the training. Their class
capsules are routed by self-attention or by dynamic routing, or have uniform couplings. The plan (results/plans.md, B8)
preceded the first run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from rich.console import Console

from capsella.data import PairSet, load_data
from capsella.errors import ArgumentError
from capsella.evaluation import difference_interval, holm_adjusted, over_seeds, slope_interval
from capsella.experiments import Results, Row, Runner, check_seeds, unpack_correct, with_learning_rate
from capsella.papers.budget import Budget, BudgetName, Budgets
from capsella.papers.table_types import NOT_RUN, Published, gain_cells, measured_text, with_test
from capsella.routing import DynamicRouting, SelfAttentionRouting, UniformRouting
from capsella.training.registry import get_recipe

RECIPE = "mazzia2021-multimnist"
HEADS = {
    "dynamic routing": DynamicRouting(iterations=3),
    "self-attention": SelfAttentionRouting(),
    "uniform couplings": UniformRouting(),  # last: the others are compared with it
}
BUDGETS = Budgets(
    Budget(epochs=2, epoch_images=640, batch_size=64, validation_pairs=200, test_pairs=1_000, cosine=True, ema=0.9),
    Budget(
        epochs=15,
        epoch_images=50_000,
        batch_size=64,
        validation_pairs=10_000,
        test_pairs=100_000,
        cosine=True,
        ema=0.999,
        precision="auto",
    ),
)
FACTORS, SEARCH_SEED, SHORTER = (1 / 4, 1.0), 100, 10  # candidate rates; their trainings have a tenth of the epochs
PARTS = 10  # equally large parts of the test pairs, by overlap
COLUMNS = (
    *("rate", "pairs wrong, ours %", "least and most overlapping tenth, %"),
    *("gain over uniform, points", "p", "detects, points"),
    *("rise of the gain per SD of overlap, points", "p, Holm", "detects, points"),
)


@dataclass(frozen=True, kw_only=True)
class OverlappingDigits(Published):
    """The table of errors on pairs of digits, and of how the gain of routing rises with their overlap."""

    rows: tuple[Row, ...]
    title: str = "Overlapping digits: gains over uniform couplings by overlap"
    note: str = (
        "Overlap: the ink that both digits of a pair share (the sum over pixels of the smaller value), divided by the "
        "ink of the digit that has less. Each network has its own learning rate, chosen on validation pairs by short "
        "trainings. Intervals are over test digits and seeds. Dynamic routing differs from uniform couplings by "
        "routing alone, self-attention also by its squash."
    )
    columns: tuple[str, ...] = ("data", "class capsules")

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Choose learning rates, train and test the missing runs, and write the table.

        Raises:
            ValueError: no seeds, or duplicate seeds.
            CapsellaError: the folder holds a run of another recipe, or images cannot be read.
        """
        check_seeds(seeds)
        runner = Runner(folder, console)
        best = runner.choose_learning_rates([_short(row) for row in self.rows], SEARCH_SEED, FACTORS)
        rates = [row.recipe.optimizer.learning_rate for row in best]
        chosen = [with_learning_rate(row, rate) for row, rate in zip(self.rows, rates, strict=True)]
        results = runner.results(chosen, seeds)
        measured = measured_text("Test error", results)
        return self.write(folder, command, measured, COLUMNS, _values(chosen, results, len(seeds)))


def overlapping_digits(budget: BudgetName) -> OverlappingDigits:
    """Return the table for pairs of MNIST's digits."""
    recipe = BUDGETS.limit(get_recipe(RECIPE), budget)
    rows = [
        Row(
            slug=name.replace(" ", "-"),
            recipe_name=RECIPE,
            recipe=recipe.with_model(routing=routing),
            progress_label=name,
        )
        for name, routing in HEADS.items()
    ]
    return OverlappingDigits(rows=tuple(rows))


def _short(row: Row) -> Row:
    epochs = max(1, row.recipe.epochs // SHORTER)
    warmup = row.recipe.optimizer.warmup_steps // SHORTER
    optimizer = replace(row.recipe.optimizer, warmup_steps=warmup)
    return replace(row, slug=f"choice-{row.slug}", recipe=replace(row.recipe, epochs=epochs, optimizer=optimizer))


def overlaps(pairs: PairSet) -> Float[np.ndarray, " n"]:
    """Return the ink that both images of each pair share, divided by that of the image with less ink: 0 to 1."""
    found = []
    for numbers in torch.arange(len(pairs)).split(1_000):
        parts = pairs.take(numbers).parts
        assert parts is not None
        ink = parts.flatten(2).float()  # [b 2 pixels]
        found.append(ink.amin(1).sum(1) / ink.sum(2).amin(1))
    return torch.cat(found).double().numpy()


def _values(rows: Sequence[Row], results: Results, seeds: int) -> list[dict[str, Any]]:
    """Return the JSON of every row; without a gain for a single seed, or if a seed diverged."""
    pairs = load_data(rows[0].recipe.data).test
    if not isinstance(pairs, PairSet):
        raise ArgumentError("data", "be pairs of images", rows[0].recipe.data.source)
    overlap, groups = overlaps(pairs), pairs.draw(torch.arange(len(pairs)))[0][:, 0].numpy()  # the first digit's pairs
    parts = np.array_split(np.argsort(overlap, kind="stable"), PARTS)
    correct = {
        row.slug: np.array([unpack_correct(run["test"]) for run in results[row.slug]]).reshape(-1, len(pairs))
        for row in rows
    }
    *routed, uniform = correct
    gains = {
        slug: (
            difference_interval(correct[slug], correct[uniform], groups),
            slope_interval(correct[slug], correct[uniform], overlap, groups),
        )
        for slug in routed
        if min(len(correct[slug]), len(correct[uniform])) >= max(seeds, 2)
    }
    adjusted = dict(zip(gains, holm_adjusted([slope.p_value for _, slope in gains.values()]), strict=True))
    values = []
    for row in rows:
        label = [f"pairs of {row.recipe.data.source}", row.progress_label]
        gain, slope = gains.get(row.slug, (None, None))
        errors = [run["test"]["error_percent"] for run in results[row.slug]]
        by_part = [100 * float(1 - correct[row.slug][:, part].mean()) for part in parts] if errors else []
        error = [over_seeds(errors), f"{by_part[0]:.2f} and {by_part[-1]:.2f}"] if errors else [NOT_RUN, "–"]
        tested = with_test(slope)
        values.append(
            {
                "cells": [
                    *(*label, f"{row.recipe.optimizer.learning_rate:g}", *error),
                    *(*gain_cells(gain), *gain_cells(slope, adjusted.get(row.slug))),
                ],
                "label": label,
                "slugs": [row.slug],
                "error_percent": errors,
                "error_percent_by_overlap": by_part,
                "overlap": [float(overlap[part].mean()) for part in parts],
                "gain": with_test(gain),
                "rise_of_gain": None if tested is None else {**tested, "p_holm": adjusted[row.slug]},
                "runs": results[row.slug],
            }
        )
    return values
