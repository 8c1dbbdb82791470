"""Seeds for PyTorch's generators; the one for the CPU uses only the lower 32 bits."""

import numpy as np


def mixed_seed(*numbers: int) -> int:
    """Return a 64-bit seed of which every bit depends on every number. Numbers must not be negative.

    A sum of shifted numbers would not do: PyTorch's generator for the CPU drops the upper half.

    >>> len({mixed_seed(seed, step) % 2**32 for seed in range(10) for step in range(10)})
    100
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
