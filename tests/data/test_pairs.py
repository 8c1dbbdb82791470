"""Pairs: every overlaid pixel accounted for, even draws, the same pair for the same number, and what is refused."""

from collections import Counter

import numpy as np
import pytest
import torch

from capsella.data import (
    ImageSet,
    NamedData,
    PairData,
    PairSet,
    load_data,
)
from capsella.data.pairs import random_numbers
from capsella.errors import ArgumentError


def make_source(counts=(5, 3, 2, 0), size=(6, 5)) -> ImageSet:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    pixels = torch.randint(1, 256, (len(labels), 1, *size)).to(torch.uint8)
    return ImageSet(pixels, labels, tuple("abcdefgh"[: len(counts)]))


def test_a_pair_is_the_clipped_sum_of_two_shifted_images() -> None:
    source = make_source()
    pairs = PairSet(source, 200, shift=2)
    images, labels, parts = pairs.take(torch.arange(200))
    assert images.shape == (200, 1, 10, 9) == (200, 1, *pairs.image_size)
    members, corners = pairs.draw(torch.arange(200))
    for k in range(200):
        canvases = np.zeros((2, 10, 9), int)
        for image in (0, 1):
            top, left = corners[k, image].tolist()
            canvases[image, top : top + 6, left : left + 5] = source.images[members[k, image], 0]
        assert np.array_equal(parts[k, :, 0].numpy(), canvases)
        assert np.array_equal(images[k, 0].numpy(), canvases.sum(0).clip(0, 255))
    assert torch.equal(labels, source.labels[members])
    assert (images == 255).any()  # sums were clipped
    with pytest.raises(ArgumentError):
        PairSet(make_source((5, 3, 0)), 5)  # two classes only


def test_classes_differ_and_partners_shifts_and_first_images_are_even() -> None:
    """Every other-class image is as likely a partner, and every shift as likely, as any other."""
    source = make_source()
    pairs = PairSet(source, 60_000, shift=2)
    members, corners = pairs.draw(torch.arange(60_000))
    labels = source.labels[members]
    assert (labels[:, 0] != labels[:, 1]).all()
    assert set(Counter(members[:, 0].tolist()).values()) == {6_000}
    for first in range(10):
        others = (source.labels != source.labels[first]).nonzero().flatten().tolist()
        partners = Counter(members[members[:, 0] == first, 1].tolist())
        expected = 6_000 / len(others)
        assert sorted(partners) == others
        assert all(abs(count - expected) < 5 * expected**0.5 for count in partners.values())
    for image in (0, 1):
        for axis in (0, 1):
            counts = torch.bincount(corners[:, image, axis])
            assert len(counts) == 5
            assert ((counts - 12_000).abs() < 5 * 12_000**0.5).all()
    moves = (corners.flatten(1).double() - 2).T
    assert (torch.corrcoef(moves) - torch.eye(4)).abs().max() < 0.02


def test_a_pair_follows_from_seed_and_number_alone() -> None:
    source = make_source()
    pairs = PairSet(source, 1_000_000_000, seed=3, shift=1)
    numbers = torch.tensor([999_999_999, 0, 77, 0])
    images, labels, parts = pairs.take(numbers)
    for position, number in enumerate(numbers.tolist()):
        alone = PairSet(source, number + 1, seed=3, shift=1).take(torch.tensor([number]))
        for together, single in zip((images, labels, parts), alone, strict=True):
            assert torch.equal(together[position], single[0])
    subset = pairs.subset(numbers).subset(torch.tensor([2, 0]))
    assert torch.equal(subset.labels, labels[[2, 0]])
    assert len(subset) == 2
    everything = torch.arange(1000)
    other = PairSet(source, 1_000_000_000, seed=4, shift=1)
    assert not torch.equal(pairs.take(everything).images, other.take(everything).images)


def test_random_numbers_are_those_of_splitmix64() -> None:
    """The published generator from a state of 0 gives 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, … ."""
    from capsella.data.pairs import _GOLDEN, _mix

    states = np.arange(1, 4, dtype=np.uint64) * _GOLDEN
    assert [hex(z) for z in _mix(states).tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]
    one_by_one = np.concatenate([random_numbers(5, np.array([k]), 3) for k in range(4)], 1)
    assert np.array_equal(random_numbers(5, np.arange(4), 3), one_by_one)
    assert len(set(one_by_one.flatten().tolist())) == 12


def test_pairs_stay_within_their_split() -> None:
    options = PairData(of="digits", pair_shift=1, test_pairs=50)
    pairs, single = load_data(options), load_data(NamedData("digits"))
    assert pairs.name == "pairs of digits"
    assert pairs.image_size == (10, 10)
    for split, images in single.named().items():
        assert torch.equal(pairs.named()[split].source.images, images.images)
    assert len(pairs.train) == 1000 * len(single.train)
    assert len(pairs.test) == 50
    assert len({part.seed for part in pairs.named().values()}) == 3
    again = load_data(PairData(of="digits", pair_shift=1, test_pairs=20))
    assert torch.equal(pairs.test.labels[:20], again.test.labels)  # a smaller test set is the first part of a larger
