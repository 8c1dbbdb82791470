"""Holding out: every class on both sides, groups whole, the same for the same seed."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from capsella.data import ImageSet
from capsella.data.holdout import Items, hold_out_fold
from capsella.data.holdout import hold_out_images as hold_out
from capsella.errors import CapsellaError


def make_set(labels: list[int], groups: list[int] | None = None) -> ImageSet:
    return ImageSet(
        images=torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8),
        labels=torch.tensor(labels),
        classes=tuple(f"class{label}" for label in range(max(labels) + 1)),
        metadata={"row": torch.arange(len(labels))} | ({} if groups is None else {"group": torch.tensor(groups)}),
    )


def rows(images: ImageSet) -> list[int]:
    return images.metadata["row"].tolist()


@given(
    counts=st.lists(st.integers(2, 40), min_size=2, max_size=5),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 1000),
)
@example(counts=[2, 3], share=0.99, seed=0)
def test_every_class_is_on_both_sides_with_its_share(counts: list[int], share: float, seed: int):
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    kept, held = hold_out(make_set(labels), share, seed)
    assert sorted(rows(kept) + rows(held)) == list(range(len(labels)))  # disjoint, and none is lost
    for label, count in enumerate(counts):
        taken = int((held.labels == label).sum())
        assert 1 <= taken <= count - 1
        assert abs(taken - share * count) <= 1


@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=2, max_size=30),
    seed=st.integers(0, 1000),
)
def test_groups_of_one_class_are_never_torn(sizes: list[tuple[int, int]], seed: int):
    sizes += [(label, 3) for label in range(3) for _ in range(2)]  # at least two groups a class
    labels = [label for label, size in sizes for _ in range(size)]
    groups = [group for group, (_, size) in enumerate(sizes) for _ in range(size)]
    kept, held = hold_out(make_set(labels, groups), 0.25, seed)
    assert not set(kept.metadata["group"].tolist()) & set(held.metadata["group"].tolist())
    assert sorted(rows(kept) + rows(held)) == list(range(len(labels)))
    assert len(kept.labels.unique()) == len(held.labels.unique()) == 3


def test_the_split_of_a_seed_is_the_same_everywhere():
    assert rows(hold_out(make_set([0, 1, 1] * 6), 0.3, 0)[1]) == [4, 5, 6, 9, 16, 17]


def test_what_cannot_be_parted_is_an_error():
    with pytest.raises(CapsellaError, match="'class1'"):
        hold_out(make_set([0, 0, 1, 0]), 0.2, 0)
    with pytest.raises(CapsellaError, match="'class1'"):
        hold_out(make_set([0, 0, 1, 1], [0, 1, 2, 2]), 0.2, 0)


def folds_of(images: ImageSet, folds: int, seed: int = 0) -> list[ImageSet]:
    """The held-out part of each fold; what is kept is the rest, in its order."""
    held = []
    for fold in range(folds):
        kept, part = (images.subset(rows) for rows in hold_out_fold(Items.of(images), folds, fold, seed))
        assert rows(kept) == sorted(set(range(len(images))) - set(rows(part)))
        held.append(part)
    return held


@given(counts=st.lists(st.integers(5, 23), min_size=2, max_size=4), folds=st.integers(2, 5), seed=st.integers(0, 1000))
def test_every_image_is_in_one_fold_and_every_class_in_all(counts: list[int], folds: int, seed: int):
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    held = folds_of(make_set(labels), folds, seed)
    assert sorted(row for part in held for row in rows(part)) == list(range(len(labels)))
    for label, count in enumerate(counts):
        taken = [int((part.labels == label).sum()) for part in held]
        assert max(taken) - min(taken) <= 1, (count, taken)


@given(sizes=st.lists(st.integers(1, 9), min_size=4, max_size=12), seed=st.integers(0, 1000))
@example(sizes=[1, 1, 1, 1, 6], seed=0)  # one group is larger than a fold
def test_a_group_is_in_one_fold(sizes: list[int], seed: int):
    labels = [label for label in (0, 1) for size in sizes for _ in range(size)]
    groups = [label * 100 + group for label in (0, 1) for group, size in enumerate(sizes) for _ in range(size)]
    held = folds_of(make_set(labels, groups), 4, seed)
    of_fold = [set(part.metadata["group"].tolist()) for part in held]
    assert sum(map(len, of_fold)) == 2 * len(sizes) == len(set().union(*of_fold))
    assert all(len(part.labels.unique()) == 2 for part in held)


def test_a_class_of_fewer_images_or_groups_than_folds():
    text = "folds: the class 'class1' has 2 images for 3 folds"
    with pytest.raises(CapsellaError, match=text):
        hold_out_fold(Items.of(make_set([0, 0, 0, 1, 1])), 3, 0, 0)
    text = "folds: the class 'class1' has 2 groups .* for 3 folds"
    with pytest.raises(CapsellaError, match=text):
        hold_out_fold(Items.of(make_set([0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 3, 4])), 3, 0, 0)
