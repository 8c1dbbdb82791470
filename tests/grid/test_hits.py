"""Which images the seeds of a row have right, and the groups that these are of."""

import base64
from dataclasses import dataclass

import numpy as np
import pytest

from capsella.evaluation import difference_interval
from capsella.grid import Hits
from capsella.grid.run import packed

TOYS = np.arange(40) // 10
RIGHT = np.random.default_rng(0).random((2, 40)) < 0.8


@dataclass
class Tested:
    """What a result holds under "test"."""

    right: np.ndarray
    groups: np.ndarray | None

    @property
    def values(self):
        held = {"images": 40, "correct": base64.b64encode(np.packbits(self.right).tobytes()).decode()}
        return held if self.groups is None else held | {"groups": packed(self.groups)}


def results(*groups):
    return [Tested(right, of).values for right, of in zip(RIGHT, groups, strict=False)]


@pytest.mark.parametrize("groups", [(TOYS, TOYS), (None, TOYS), (TOYS, None)])
def test_groups_are_those_of_any_seed(groups):
    hits = Hits.of(results(*groups))
    assert np.array_equal(hits.right, RIGHT)
    assert np.array_equal(hits.groups, TOYS)


def test_without_groups_every_image_stands_for_itself():
    assert Hits.of(results(None, None)).groups is None


def test_other_groups_are_of_another_test():
    with pytest.raises(ValueError, match="groups: must be the same for all results of a test"):
        Hits.of(results(TOYS, TOYS[::-1] // 2))
    with pytest.raises(ValueError, match="groups: must be the same for all results of a test"):
        Hits(RIGHT, TOYS).gain_over(Hits(RIGHT, TOYS // 2))


@pytest.mark.parametrize("groups", [(TOYS, TOYS), (None, TOYS), (TOYS, None)])
def test_a_gain_is_over_the_groups_of_either(groups):
    own, other = Hits(RIGHT, groups[0]), Hits(RIGHT[:, ::-1], groups[1])
    assert own.gain_over(other) == difference_interval(RIGHT, RIGHT[:, ::-1], TOYS)
