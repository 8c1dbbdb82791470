"""Indices that are spread through a set."""

from capsella.data import evenly


def test_no_index_is_past_the_end_of_a_large_set() -> None:
    """As of MultiMNIST's 54 million pairs, of which float32 cannot count each."""
    indices = evenly(54_001_000, 5000)
    assert (int(indices[0]), int(indices[-1]), len(indices)) == (0, 54_000_999, 5000)
