"""Which images the seeds of a row have right, and the groups of these images."""

import base64

import numpy as np
import pytest

from capsella.evaluation import difference_interval
from capsella.grid import Hits
from capsella.grid.run import packed

TOYS = np.arange(40) // 10
RIGHT = np.random.default_rng(0).random((2, 40)) < 0.8


def results(*groups):
    values = [{"images": 40, "correct": base64.b64encode(np.packbits(right).tobytes()).decode()} for right in RIGHT]
    return [
        value if group is None else value | {"groups": packed(group)}
        for value, group in zip(values, groups, strict=True)
    ]


@pytest.mark.parametrize("groups", [(TOYS, TOYS), (None, TOYS), (TOYS, None)])
def test_groups_of_any_seed_count(groups):
    hits = Hits.of(results(*groups))
    assert np.array_equal(hits.right, RIGHT)
    assert np.array_equal(hits.groups, TOYS)
    own, other = Hits(RIGHT, groups[0]), Hits(RIGHT[:, ::-1], groups[1])
    assert own.gain_over(other) == difference_interval(RIGHT, RIGHT[:, ::-1], TOYS)


def test_groups_that_differ_belong_to_another_test():
    assert Hits.of(results(None, None)).groups is None
    with pytest.raises(ValueError, match=r"^groups:"):
        Hits.of(results(TOYS, TOYS[::-1] // 2))
    with pytest.raises(ValueError, match=r"^groups:"):
        Hits(RIGHT, TOYS).gain_over(Hits(RIGHT, TOYS // 2))
