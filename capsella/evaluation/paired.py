"""McNemar's test of two trained networks on the same images."""

from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool


class McNemar(NamedTuple):
    """Images that only one of two networks has right, and the exact p-value of such an imbalance by chance."""

    only_first: int
    only_second: int
    p_value: float


def mcnemar(first: Bool[np.ndarray, " images"], second: Bool[np.ndarray, " images"]) -> McNemar:
    """McNemar's exact test (1947) of two trained networks on the same images.

    Raises:
        ValueError: not hits of the same images.
    """
    if first.dtype != bool or second.dtype != bool or first.ndim != 1 or first.shape != second.shape:
        raise ValueError(
            f"first, second: must be hits [images] of the same images, got {first.dtype} {first.shape} and "
            f"{second.dtype} {second.shape}"
        )
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    unlike = only_first + only_second
    return McNemar(only_first, only_second, float(scipy.stats.binomtest(only_first, unlike).pvalue) if unlike else 1.0)
