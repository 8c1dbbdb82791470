"""Which images the seeds of a row have right, and the groups of these images."""

import base64

import numpy as np
import pytest

from capsella.evaluation import difference_interval
from capsella.experiments import CorrectnessTable
from capsella.experiments.fit import pack_groups

TOYS = np.arange(40) // 10
RIGHT = np.random.default_rng(0).random((2, 40)) < 0.8


def results(*groups):
    values = [{"images": 40, "correct": base64.b64encode(np.packbits(right).tobytes()).decode()} for right in RIGHT]
    return [
        value if group is None else value | {"groups": pack_groups(group)}
        for value, group in zip(values, groups, strict=True)
    ]


@pytest.mark.parametrize("groups", [(TOYS, TOYS), (None, TOYS), (TOYS, None)])
def test_groups_of_any_seed_count(groups):
    hits = CorrectnessTable.from_tests(results(*groups))
    assert np.array_equal(hits.correct, RIGHT)
    assert np.array_equal(hits.groups, TOYS)
    own, other = CorrectnessTable(RIGHT, groups[0]), CorrectnessTable(RIGHT[:, ::-1], groups[1])
    assert own.difference_from(other) == difference_interval(RIGHT, RIGHT[:, ::-1], TOYS)


def test_groups_that_differ_belong_to_another_test():
    assert CorrectnessTable.from_tests(results(None, None)).groups is None
    with pytest.raises(ValueError, match=r"^groups:"):
        CorrectnessTable.from_tests(results(TOYS, TOYS[::-1] // 2))
    with pytest.raises(ValueError, match=r"^groups:"):
        CorrectnessTable(RIGHT, TOYS).difference_from(CorrectnessTable(RIGHT, TOYS // 2))
