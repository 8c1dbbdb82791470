"""What `capsella data show` warns of."""

import dataclasses

import numpy as np
import pytest
import torch

from capsella.data import ImageSet, Splits, few_groups, too_few

NAMES = ("[red]", "b", "c")


def image_set(*counts):
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    return ImageSet(torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8), labels, NAMES)


def splits(train, test):
    return Splits("cells", image_set(*train), image_set(1, 1, 1), image_set(*test))


def test_small_classes_are_named_with_their_numbers():
    train, test = too_few(splits((10, 9, 9), (5, 4, 0)))
    assert train.endswith("b (9), c (9)")
    assert test.endswith("b (4), c (0)")


@pytest.mark.parametrize(("largest", "is_named"), [(29, False), (30, True)])
def test_uneven_classes_are_named(largest, is_named):
    said = too_few(splits((20, largest, 20), (9, 9, 9)))
    assert bool(said) == is_named
    if is_named:
        assert "b has 1.5 times" in said[0]
        assert "43 %" in said[0]


@pytest.mark.parametrize(("patients", "is_named"), [(4, True), (5, False)])
def test_few_groups_of_test_images_are_named(patients, is_named):
    enough = splits((14, 10, 12), (5, 5, 5))
    of = {"group": torch.arange(15) % patients}
    said = too_few(dataclasses.replace(enough, test=dataclasses.replace(enough.test, metadata=of)))
    assert ["4 groups" in sentence for sentence in said] == [True] * is_named


@pytest.mark.parametrize(("images", "is_named"), [(5, False), (6, True)])
def test_a_group_with_most_of_the_test_images_is_named(images, is_named):
    groups = np.array([*[0] * images, *range(1, 5), *range(1, 5), 1, 2][:15])
    said = few_groups(groups, np.zeros(15, int), ["red"])
    assert ["40 %" in sentence for sentence in said] == [True] * is_named
