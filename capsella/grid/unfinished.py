"""Whether trainings ended while their networks still learned."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy
from jaxtyping import Float

from capsella.training import Recipe, RunFolder

STILL = 0.1
"""A curve still falls where its last third brought more than this share of all that it fell."""


def curves_tell(recipe: Recipe) -> bool:
    """Whether a curve that falls at its end tells that a network still learned.

    Where the learning rate falls to nothing as a cosine, it does not: every curve comes down at the end.
    """
    return recipe.optimizer.schedule != "cosine"


def still_learned(recipe: Recipe, runs: Sequence[Path]) -> bool:
    """Whether the training loss, or the training error, still fell when the trainings of one row ended.

    A loss whose margin widens may rise while the network learns; the error then tells. Where `curves_tell` nothing, it
    is False. `runs`: folders, one a seed.

    Raises:
        CapsellaError: unreadable metrics of a run.
    """
    if not curves_tell(recipe):
        return False
    tables = [RunFolder(run).read_metrics() for run in runs]
    return any(still_falls([table[name] for table in tables]) for name in ("train_loss", "train_error"))


def still_falls(seeds: Sequence[Float[np.ndarray, " epochs"]]) -> bool:
    """Whether a curve of the training, as loss against epochs, still fell clearly when it ended.

    The mean over seeds counts. A line through its last third, three epochs at least, must fall by more than a tenth of
    what the whole curve fell, and not by chance (one-sided t-test of the slope, 5 %). Of two epochs nothing is said.
    """
    curve = np.stack([one[: min(map(len, seeds))] for one in seeds]).mean(0)
    last = max(3, len(curve) // 3)
    if len(curve) < last or not np.isfinite(curve).all() or np.ptp(curve[-last:]) == 0:
        return False
    line = scipy.stats.linregress(np.arange(last), curve[-last:], alternative="less")
    end = line.intercept + line.slope * (last - 1)
    return bool(line.pvalue < 0.05 and -line.slope * last > STILL * max(curve[0] - end, 0))
