"""Detect learning curves that were still falling when training ended."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy
from jaxtyping import Float

from capsella.training import Recipe, RunFolder

# A curve still falls if its last third accounts for more than this fraction of its whole fall.
STILL_FALLING = 0.1


def curves_show_convergence(recipe: Recipe) -> bool:
    """Return whether a curve that still falls at its end shows that the network was still learning.

    It does not with a cosine schedule: its learning rate ends at zero, which makes every curve fall.
    """
    return recipe.optimizer.schedule != "cosine"


def was_still_learning(recipe: Recipe, runs: Sequence[Path]) -> bool:
    """Return whether training loss or error, averaged over `runs` (one per seed), still fell at the end of training.

    The error counts too because a loss whose margin widens may rise while the network learns. False if the curves do
    not show convergence.

    Raises:
        CapsellaError: metrics.csv of a run is missing or damaged.
    """
    if not curves_show_convergence(recipe):
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
