"""Seeds for generators of PyTorch, of which the CPU's looks at the lower 32 bits alone."""

import numpy as np


def mixed_seed(*numbers: int) -> int:
    """One seed of 64 bits, of which every bit depends on every number; each is at least 0.

    A sum of numbers that are shifted apart would not do: PyTorch's generator for the CPU drops the upper half.

    >>> len({mixed_seed(seed, step) % 2**32 for seed in range(10) for step in range(10)})
    100
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
