"""Curves that still fell when a training ended."""

import numpy as np
import pytest

from capsella.experiments import is_still_falling, was_still_learning
from capsella.training.registry import get_recipe


@pytest.mark.parametrize(
    ("curve", "falls"),
    [
        (lambda e: 1.6 - 0.01 * e, True),  # a line: it had hardly begun
        (lambda e: np.exp(-e / 30), True),
        (lambda e: np.exp(-e / 5), False),
        (lambda e: 0.5 + 0 * e, False),
        (lambda e: np.where(e < 20, 1 - 0.045 * e, 0.1), False),
        (lambda e: 0.2 + 0.02 * e, False),  # a loss whose margin widens
    ],
)
def test_curves(curve, falls):
    epochs, random = np.arange(30), np.random.default_rng(0)
    seeds = [curve(epochs) + random.normal(0, 0.002, 30) for _ in range(3)]
    assert is_still_falling(seeds) is falls


def test_a_cosine_is_not_asked(tmp_path):
    lines = ["epoch,train_loss,train_error", *(f"{e},{1 - 0.1 * e},{50 - e}" for e in range(9))]
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    assert was_still_learning(get_recipe("demo"), [tmp_path])
    assert not was_still_learning(get_recipe("images-efficient"), [tmp_path])
