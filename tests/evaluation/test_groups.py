"""Intervals over groups of images: patients, photographs, toys."""

import numpy as np
import pytest
import torch
from scipy.special import expit
from scipy.stats import t

from capsella.evaluation import (
    Evaluation,
    accuracy_interval,
    balanced_difference_interval,
    balanced_interval,
    difference_interval,
)
from capsella.evaluation.groups import deviations, over_groups, share_interval, worth
from capsella.report.prose import about_result

EACH = 20  # images of a group


def drawn(seed, groups=30, spread=0.25):
    """Hits of two networks on groups that are each easier or harder than others, as patients are."""
    generator = np.random.default_rng(seed)
    easy = np.clip(generator.normal(0.8, spread, groups), 0, 1).repeat(EACH)
    return generator.random((2, 1, groups * EACH)) < easy, np.arange(groups).repeat(EACH)


def test_the_interval_covers_new_groups_as_often_as_it_says():
    truth = np.clip(np.random.default_rng(0).normal(0.8, 0.25, 1_000_000), 0, 1).mean()
    found = {"groups": 0, "images": 0, "one run": 0}
    for seed in range(400):
        (hits, _), groups = drawn(seed)
        for name, of in (("groups", groups), ("images", None)):
            interval = accuracy_interval(hits, of)
            found[name] += interval.low <= truth <= interval.high
        low, high = evaluation(hits[0], groups).error_interval
        found["one run"] += low / 100 <= 1 - truth <= high / 100
    assert found["groups"] / 400 > 0.92
    assert found["one run"] / 400 > 0.92
    assert found["images"] / 400 < 0.75


def evaluation(right, groups):
    """Of two classes by turns, predicted as `right` says."""
    labels = torch.arange(len(right)) % 2
    predicted = torch.where(torch.from_numpy(right), labels, 1 - labels)
    one_hot = torch.nn.functional.one_hot(predicted, 2).float()
    return Evaluation(one_hot, labels, ("a", "b"), group=None if groups is None else torch.from_numpy(groups))


def test_groups_that_are_no_more_alike_than_images_count_by_their_number():
    """That they are so alike may be luck."""
    hits = np.tile([True, True, True, False], 50)[None]
    groups = np.arange(200) // 4  # of each group, three of four
    grouped, plain = accuracy_interval(hits, groups), accuracy_interval(hits)
    assert grouped.image_error == plain.image_error
    assert (grouped.degrees, plain.degrees) == (pytest.approx(49), pytest.approx(199))
    assert worth(hits[0], groups) == pytest.approx((t.ppf(0.975, 199) / t.ppf(0.975, 49)) ** 2)


@pytest.mark.parametrize("patients", [2, 3, 4])
def test_few_groups_that_agree_by_luck_make_no_winner(patients):
    """Two networks that are equally good on average, each better with some patients; 100 images a patient."""
    generator = np.random.default_rng(0)
    groups = np.arange(patients).repeat(100)
    winners = 0
    for _ in range(400):
        apart = generator.normal(0, 0.06, patients).repeat(100) / 2
        first, second = generator.random((2, 1, len(groups))) < np.stack([0.85 + apart, 0.85 - apart])[:, None]
        interval = difference_interval(first, second, groups)
        winners += interval.low > 0 or interval.high < 0
    assert winners / 400 < 0.05


UNEVEN = [60, 30, 20, 10, 10, 10, 5, 5], [200, *[20] * 7], [4, 6, 7, 9, 12, 16, 20, 26, 33, 43, 55, 70, 90, 116, 148]


@pytest.mark.parametrize("sizes", UNEVEN, ids=lambda sizes: f"{max(sizes)} of {sum(sizes)}")
def test_a_patient_with_many_images_makes_no_interval_too_narrow(sizes):
    """A large group draws the mean to itself, and hides how much it differs from others."""
    generator, groups = np.random.default_rng(0), np.repeat(np.arange(len(sizes)), sizes)
    labels = np.arange(len(groups)) % 2
    truth = expit(generator.normal(1.5, 1, 1_000_000)).mean()
    held = {"accuracy": 0, "balanced": 0, "one run": 0, "no winner": 0}
    for _ in range(300):
        patients = generator.normal(1.5, 1, len(sizes))
        both = expit(patients + generator.normal(0, 0.7, (2, len(sizes))))[:, groups]
        hits = generator.random(len(groups)) < expit(patients)[groups]
        first, second = generator.random((2, 1, len(groups))) < both[:, None]
        intervals = {
            "accuracy": accuracy_interval(hits[None], groups),
            "balanced": balanced_interval(hits[None], labels, groups),
        }
        for name, interval in intervals.items():
            held[name] += interval.low <= truth <= interval.high
        low, high = share_interval(hits, groups)
        held["one run"] += low <= truth <= high
        apart = difference_interval(first, second, groups)
        held["no winner"] += apart.low <= 0 <= apart.high
    assert min(held.values()) / 300 > 0.93, held


def test_large_and_small_groups_are_corrected_as_the_matrices_of_bell_and_mccaffrey_do():
    generator = np.random.default_rng(0)
    group, label = generator.integers(0, 7, 300), generator.integers(0, 3, 300)
    added = deviations(generator.random(300), label)
    shares = np.stack([np.bincount(group[label == one], minlength=7) for one in range(3)], 1)
    shares = shares / shares.sum(0)
    root = 1 / np.sqrt(1 - shares)
    moves = sum(np.diag(root[:, c] * shares[:, c]) @ (np.eye(7) - shares[:, c]) for c in range(3))
    trace = np.trace(moves @ moves.T)
    sums = sum(root[:, c] * np.bincount(group[label == c], added[label == c], 7) for c in range(3))
    variance, number = over_groups(added, group, (0.0, 300), label)
    assert variance == pytest.approx((shares.sum(1) ** 2).sum() / trace * (sums**2).sum())
    assert number <= trace**2 / np.trace(moves @ moves.T @ moves @ moves.T) + 1 + 1e-9


def test_single_images_as_groups_are_about_as_images():
    hits = np.random.default_rng(0).random((1, 500)) < 0.9
    one, other = accuracy_interval(hits, np.arange(500)), accuracy_interval(hits)
    assert one.high - one.low == pytest.approx(other.high - other.low, rel=0.05)


def test_one_group_says_nothing_of_others():
    hits = np.random.default_rng(0).random((1, 50)) < 0.9
    assert accuracy_interval(hits, np.zeros(50, int)) == accuracy_interval(hits)


def test_copies_of_every_image_prove_no_more_than_the_images():
    hits = np.random.default_rng(0).random((1, 200)) < 0.8
    copied = accuracy_interval(hits.repeat(10, 1), np.arange(200).repeat(10))
    alone = accuracy_interval(hits)
    assert copied.high - copied.low == pytest.approx(alone.high - alone.low, rel=0.05)
    assert worth(hits[0].repeat(10), np.arange(200).repeat(10)) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("value", [0.9, 1 / 3, 1.0])
def test_where_all_values_are_the_same_only_the_number_of_groups_counts(value):
    degrees = (t.ppf(0.975, 299) / t.ppf(0.975, 29)) ** 2
    assert worth(np.full(300, value), np.arange(300) // 10) == pytest.approx(degrees)
    assert worth(np.full(300, value), np.arange(300)) == 1.0


def test_one_more_mistake_makes_no_interval_narrower():
    """Of four patients, 100 images each."""
    groups, widths = np.arange(4).repeat(100), []
    for wrong in range(3):
        hits = np.arange(400) >= wrong
        widths.append(width(share_interval(hits, groups)))
    assert widths == sorted(widths)


def test_a_difference_of_a_few_groups_is_wider():
    (first, second), groups = drawn(3, groups=10)
    plain, grouped = difference_interval(first, second), difference_interval(first, second, groups)
    assert grouped.estimate == plain.estimate
    second[0, groups == 4] = False  # one patient that the second network cannot read at all
    plain, grouped = difference_interval(first, second), difference_interval(first, second, groups)
    assert plain.low > 0 > grouped.low
    assert grouped.degrees == pytest.approx(9)


def test_means_over_classes_take_groups_too():
    (first, second), groups = drawn(5)
    labels = groups % 3
    wide, plain = balanced_interval(first, labels, groups), balanced_interval(first, labels)
    assert wide.estimate == plain.estimate
    assert wide.high - wide.low > 1.5 * (plain.high - plain.low)
    second[0, groups == 4] = False
    wide, plain = (balanced_difference_interval(first, second, labels, of) for of in (groups, None))
    assert wide.high - wide.low > 1.5 * (plain.high - plain.low)


def test_balanced_accuracy_of_one_run():
    (hits, _), groups = drawn(7)
    wide, plain = (evaluation(hits[0], of).balanced_accuracy_interval for of in (groups, None))
    assert wide[1] - wide[0] > 1.5 * (plain[1] - plain[0])


def test_intervals_of_classes_take_groups_too():
    (hits, _), groups = drawn(7)
    labels = groups % 3
    predicted = np.where(hits[0], labels, (labels + 1) % 3)
    one_hot = torch.eye(3)[torch.from_numpy(predicted)]
    wide, plain = (
        Evaluation(one_hot, torch.from_numpy(labels), ("a", "b", "c"), group=of).per_class
        for of in (torch.from_numpy(groups), None)
    )
    for one, other in zip(wide, plain, strict=True):
        assert (one.recall, one.specificity, one.support) == (other.recall, other.specificity, other.support)
        assert width(one.recall_interval) > 1.5 * width(other.recall_interval)
        assert width(one.specificity_interval) > 1.2 * width(other.specificity_interval)


def width(interval):
    return interval[1] - interval[0]


def test_one_group_is_as_none():
    labels = torch.tensor([0, 0, 1, 1, 1, 1])
    one = Evaluation(torch.eye(2)[[0, 1, 1, 1, 0, 1]], labels, ("a", "b"), group=torch.zeros(6).long())
    assert one.groups is None
    assert one.notes() == ["the test images are of 1 group; intervals take each image for one of its own"]
    assert "the test images are of 1 group: they say little of others, whatever the interval" in one.warnings()


def test_groups_of_other_images_are_refused():
    with pytest.raises(ValueError, match="groups: must be one for each of the 50 images, got"):
        accuracy_interval(np.ones((1, 50), bool), np.zeros(49, int))
    with pytest.raises(ValueError, match="group: must be one for each of the 4 images"):
        Evaluation(torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 0, 1]), ("a", "b"), group=torch.zeros(3).long())


def test_a_reader_is_told():
    (hits, _), groups = drawn(7)
    assert evaluation(hits[0], groups).notes() == [
        "the test images are of 30 groups; intervals are over these; where a share is 0 or 100 %, or of images of one "
        "group, nothing tells how much groups differ, and an interval may be too narrow"
    ]
    assert "Other 30 groups of images would give another number" in about_result(evaluation(hits[0], groups))[0]
    assert "Another set of as many images" in about_result(evaluation(hits[0], None))[0]


@pytest.mark.parametrize("patients", [(3, 20), (4, 40), (20, 20)])
def test_a_mean_over_classes_is_as_sure_as_the_few_patients_of_a_class_make_it(patients):
    """Each patient has one class. Patients of all classes counted together would make too narrow an interval."""
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1], [count * EACH for count in patients])
    groups = np.repeat(np.arange(sum(patients)), EACH)
    truth = np.clip(generator.normal(0.7, 0.2, 1_000_000), 0, 1).mean()
    held = 0
    for _ in range(400):
        hits = generator.random((1, len(labels))) < np.clip(generator.normal(0.7, 0.2, sum(patients)), 0, 1)[groups]
        interval = balanced_interval(hits, labels, groups)
        held += interval.low <= truth <= interval.high
    assert held / 400 > 0.89


@pytest.mark.parametrize("found", [(True, True), (True, False)])
def test_classes_of_one_patient_each_in_which_nothing_differs(found):
    """As in a fold of few patients, where each has one class."""
    labels = np.repeat([0, 1], 6)
    hits = np.array(found)[None, labels]
    for interval in (balanced_interval(hits, labels, labels), balanced_difference_interval(hits, hits, labels, labels)):
        assert interval.low <= interval.estimate <= interval.high
    assert 0 < worth(hits[0], labels, labels) < 0.1
    assert evaluation(hits[0], labels).to_dict()["images"] == 12
