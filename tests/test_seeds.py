"""Seeds that a generator of 32 bits tells apart."""

import pytest
import torch

from capsella.seeds import mixed_seed


def test_every_number_reaches_the_generator():
    draws = {
        torch.randint(2**31, (3,), generator=torch.Generator().manual_seed(mixed_seed(seed, stream, number))).sum()
        for seed in (0, 1, 2**22 - 1)
        for stream in (1, 2)
        for number in (0, 1, 2**33)
    }
    assert len({int(draw) for draw in draws}) == 18


def test_equal_numbers_give_equal_seeds_and_negative_ones_none():
    assert mixed_seed(3, 1, 7) == mixed_seed(3, 1, 7) != mixed_seed(3, 7, 1)
    with pytest.raises(ValueError, match="negative"):
        mixed_seed(-1)
