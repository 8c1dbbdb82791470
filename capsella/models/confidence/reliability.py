"""Does a model that says 0.9 get nine images in ten right? Reliability curve and expected calibration error."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from capsella.errors import check_minimum

BINS = 15


@dataclass(frozen=True, eq=False)
class Calibration:
    """Images sorted by confidence into bins of equal width over [0, 1].

    edges: [bins + 1]. counts: [bins], images in each bin.
    confidence, accuracy: [bins], their means within each bin; not-a-number where a bin is empty.
    """

    edges: Float[np.ndarray, " edges"]
    counts: Int[np.ndarray, " bins"]
    confidence: Float[np.ndarray, " bins"]
    accuracy: Float[np.ndarray, " bins"]

    @property
    def expected_error(self) -> float:
        """Expected calibration error: Σ_bins n_bin/n · |accuracy − confidence|, in [0, 1] (Guo et al. 2017, Eq. 3)."""
        filled = self.counts > 0
        gaps = np.abs(self.accuracy[filled] - self.confidence[filled])
        return float(np.average(gaps, weights=self.counts[filled]))


def calibration(confidence: Float[np.ndarray, " n"], correct: Bool[np.ndarray, " n"], bins: int = BINS) -> Calibration:
    """Bin predictions by confidence (Guo et al. 2017, section 2).

    Args:
        confidence: [n], in [0, 1]; what a model says of its own prediction. Capsule lengths do not sum to one over
            the classes, and need not: each by itself is the probability that its entity is there (Sabour et al. 2017).
        correct: [n], whether the prediction was right.
        bins: number of bins; 15 as in the paper.

    Raises:
        ValueError: no predictions, lengths that differ, a confidence outside [0, 1], no bins.
    """
    check_minimum(1, bins=bins)
    if len(confidence) == 0 or len(confidence) != len(correct):
        raise ValueError(
            f"confidence, correct: must have the same length, at least 1, got {len(confidence)} and {len(correct)}"
        )
    # Written so that not-a-number fails too.
    if not ((confidence >= 0) & (confidence <= 1)).all():
        raise ValueError(f"confidence: must be in [0, 1], got {confidence.min()} to {confidence.max()}")
    edges = np.linspace(0, 1, bins + 1)
    # A confidence on an edge belongs to the bin above it, and 1 to the last.
    which = np.digitize(confidence, edges[1:-1])
    counts = np.bincount(which, minlength=bins)
    filled = np.where(counts > 0, counts, np.nan)
    return Calibration(
        edges=edges,
        counts=counts,
        confidence=np.bincount(which, weights=confidence, minlength=bins) / filled,
        accuracy=np.bincount(which, weights=correct, minlength=bins) / filled,
    )
