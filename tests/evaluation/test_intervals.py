"""Intervals by hand on constructed hits, and by simulation: how often they hold what they are of."""

import numpy as np
import pytest
from scipy.stats import norm, t

from capsella.evaluation import (
    accuracy_interval,
    balanced_difference_interval,
    balanced_interval,
    difference_interval,
    fold_interval,
    mean_share_interval,
    points,
    wilson_interval,
)
from capsella.evaluation.intervals import interval_over_seeds
from capsella.evaluation.paired import mcnemar


def hits(*rows):
    return np.array([[letter == "1" for letter in row] for row in rows])


class TestByHand:
    def test_one_seed_is_agresti_and_coull(self):
        found = accuracy_interval(hits("1" * 15 + "0" * 5))
        middle = 17 / 24
        half = t.ppf(0.975, 19) * (middle * (1 - middle) / 24) ** 0.5
        assert found.estimate == 0.75
        assert (found.low, found.high) == pytest.approx((middle - half, middle + half))
        assert found.seed_error is None
        assert found.degrees == 19

    def test_one_pair_is_agresti_and_min(self):
        first, second = hits("1111100000"), hits("1100011000")  # 3 by the first alone, 2 by the second alone
        found = difference_interval(first, second)
        middle = 1 / 12
        half = t.ppf(0.975, 9) * ((6 / 12 - middle**2) / 12) ** 0.5
        assert found.estimate == pytest.approx(0.1)
        assert (found.low, found.high) == pytest.approx((middle - half, middle + half))

    def test_seeds_add_their_variance(self):
        table = hits("1111111100", "1111000000")  # accuracies of 0.8 and 0.4
        found = accuracy_interval(table)
        per_image = np.array([1] * 4 + [0.5] * 4 + [0] * 2)
        middle = (per_image.sum() + 2) / 14
        images = (((per_image**2).sum() + 2) / 14 - middle**2) / 14
        seeds = 0.08 / 2
        degrees = (images + seeds) ** 2 / (images**2 / 9 + seeds**2 / 1)
        assert found.image_error**2 == pytest.approx(images)
        assert found.seed_error**2 == pytest.approx(seeds)
        assert found.degrees == pytest.approx(degrees)
        assert found.standard_error == pytest.approx((images + seeds) ** 0.5)
        assert (found.low, found.high) == (0, 1)  # two seeds that differ so much say nothing

    def test_networks_that_always_agree(self):
        same = hits("1" * 90 + "0" * 10)
        found = difference_interval(same, same)
        assert found.estimate == 0
        assert -found.low == pytest.approx(found.high)
        assert 0 < found.high < 0.03
        assert found.images_needed(100) is None

    def test_all_right_is_not_certainty(self):
        found = accuracy_interval(hits("1" * 50))
        assert found.high == found.estimate == 1
        assert 0.85 < found.low < 0.95

    def test_what_could_be_found(self):
        first, second = hits("1" * 80 + "0" * 20), hits("1" * 70 + "0" * 10 + "1" * 5 + "0" * 15)
        found = difference_interval(first, second)
        expected = (t.ppf(0.975, 99) + norm.ppf(0.8)) * found.standard_error
        assert found.detectable == pytest.approx(expected)
        needed = found.images_needed(100)
        quantiles = norm.ppf(0.975) + norm.ppf(0.8)
        assert needed == np.ceil(100 * (quantiles * found.image_error / 0.05) ** 2)

    @pytest.mark.parametrize(
        ("first", "second", "expected"),
        [("11110000", "00001111", (4, 4, 1.0)), ("11111", "00000", (5, 0, 2 / 32)), ("101", "101", (0, 0, 1.0))],
    )
    def test_mcnemar(self, first, second, expected):
        assert tuple(mcnemar(hits(first)[0], hits(second)[0])) == pytest.approx(expected)


class TestCoverage:
    """Logits of networks: a mean, an effect of the seed, and one of the image that both networks share."""

    @pytest.mark.parametrize(("seeds", "images", "seed_sd"), [(1, 150, 0.0), (3, 150, 0.3), (5, 80, 0.3)])
    def test_nineteen_times_in_twenty(self, seeds, images, seed_sd):
        random = np.random.default_rng(1)
        many = random.normal(0, np.hypot(seed_sd, 2), 200_000)
        truth = [(1 / (1 + np.exp(-(mean + many)))).mean() for mean in (2.0, 1.4)]
        held, trials = np.zeros(3), 400
        for _ in range(trials):
            image = random.normal(0, 2, images)
            first, second = (
                random.random((seeds, images))
                < 1 / (1 + np.exp(-(mean + image + random.normal(0, seed_sd, (seeds, 1)))))
                for mean in (2.0, 1.4)
            )
            one, both = accuracy_interval(first), difference_interval(first, second)
            held += one.low <= truth[0] <= one.high, both.low <= truth[0] - truth[1] <= both.high, both.low > 0
        accuracy, difference, shown = held / trials
        assert 0.925 <= accuracy <= 0.995
        assert 0.925 <= difference <= 0.995
        assert shown > 0.2  # an interval of everything would hold it always

    def test_equal_networks_are_rarely_told_apart(self):
        random = np.random.default_rng(2)
        told = 0
        for _ in range(400):
            image = random.normal(0, 2, 150)
            first, second = (
                random.random((3, 150)) < 1 / (1 + np.exp(-(2 + image + random.normal(0, 0.3, (3, 1))))) for _ in "ab"
            )
            found = difference_interval(first, second)
            told += found.low > 0 or found.high < 0
        assert told / 400 <= 0.06


class TestErrors:
    def test_no_table(self):
        with pytest.raises(
            ValueError, match=r"^hits: must be hits \[seeds images\] of at least one seed and two images"
        ):
            accuracy_interval(np.zeros((1, 1), bool))
        with pytest.raises(ValueError, match=r"got float64 \(2, 3\)$"):
            accuracy_interval(np.zeros((2, 3)))

    def test_other_images(self):
        with pytest.raises(ValueError, match=r"^second: must be of the same 3 images as first, got 4$"):
            difference_interval(np.zeros((1, 3), bool), np.zeros((1, 4), bool))
        with pytest.raises(ValueError, match=r"^first, second: must be hits"):
            mcnemar(np.zeros(3, bool), np.zeros(4, bool))


class TestBalanced:
    def test_each_class_counts_the_same(self):
        table = hits("1" * 90 + "0" * 5 + "1" * 5)
        labels = np.array([0] * 90 + [1] * 10)
        found = balanced_interval(table, labels)
        assert found.estimate == 0.75
        large, small = (k * (n - k) / n**2 / (n - 4) for k, n in ((92, 94), (7, 14)))
        assert found.image_error == pytest.approx(((large + small) / 4) ** 0.5)

    def test_a_class_without_images_does_not_count(self):
        assert balanced_interval(hits("1100"), np.array([0, 0, 2, 2])).estimate == 0.5

    def test_a_rare_class_makes_it_wide(self):
        """Of a class of three nearly nothing is known: 95 % of such intervals must hold the truth."""
        random = np.random.default_rng(0)
        labels, truth = np.repeat(np.arange(4), (100, 100, 100, 3)), np.array([0.9, 0.9, 0.9, 0.6])
        held = []
        for _ in range(400):
            found = balanced_interval(random.random((1, 303)) < truth[labels], labels)
            held.append(found.low <= truth.mean() <= found.high)
        assert np.mean(held) > 0.93

    def test_guessing_is_seldom_better_than_guessing(self):
        """Four classes, one of them rare; one-sided, 2.5 % of such intervals may lie above a quarter."""
        random = np.random.default_rng(0)
        labels = np.repeat(np.arange(4), (100, 60, 35, 5))
        above = [balanced_interval(random.random((3, 200)) < 0.25, labels).low > 0.25 for _ in range(400)]
        assert np.mean(above) < 0.04

    def test_errors(self):
        with pytest.raises(ValueError, match=r"^labels: must be one for each of the 4 images, got \(3,\)$"):
            balanced_interval(hits("1100"), np.array([0, 1, 2]))


def test_the_mean_of_shares_covers_the_truth_as_often_as_it_says():
    """Classes of 40, 12 and 6 images, of which 90, 70 and 50 % are found: 95 % of all draws, a little more or less."""
    generator, truth = np.random.default_rng(0), np.mean([0.9, 0.7, 0.5])
    draws = np.stack([generator.binomial(n, p, 2000) for n, p in ((40, 0.9), (12, 0.7), (6, 0.5))], 1)
    numbers = (40, 12, 6)
    intervals = [mean_share_interval(list(zip(hits, numbers, strict=True))) for hits in draws.tolist()]
    inside = [low <= truth <= high for low, high in intervals]
    assert 0.93 < np.mean(inside) < 0.98


def test_the_mean_of_one_share_is_wilsons():
    assert mean_share_interval([(3, 10)]) == pytest.approx(wilson_interval(3, 10))
    with pytest.raises(ValueError, match="shares: must each be of some images"):
        mean_share_interval([(0, 0)])


class TestFolds:
    def test_computed_by_hand(self):
        found = fold_interval([0.1, 0.2, 0.4, 0.1], tested=100, others=300)
        sd = ((0.1**2 + 0.0**2 + 0.2**2 + 0.1**2) / 3) ** 0.5  # about the mean of 0.2
        half = 3.182446 * sd * (1 / 4 + 1 / 3) ** 0.5  # Student's 97.5 % quantile with 3 degrees of freedom
        assert found == pytest.approx((0.2, 0.0, 0.2 + half))
        assert fold_interval([0.1, 0.2, 0.4, 0.1], 100, 300, least=-1.0).low == pytest.approx(0.2 - half)
        assert fold_interval([0.8, 0.9, 1.0], 1, 2).high == 1.0

    @pytest.mark.parametrize("folds", [3, 5, 10])
    def test_it_covers_folds_that_share_images(self, folds):
        """Values of a correlation of tested/(tested + others), which Nadeau and Bengio assume."""
        random, shared = np.random.default_rng(0), 1 / folds
        draws = 4000
        common = random.normal(0, 0.02 * shared**0.5, (draws, 1))
        values = 0.5 + common + random.normal(0, 0.02 * (1 - shared) ** 0.5, (draws, folds))

        def coverage(others):
            intervals = [fold_interval(row.tolist(), 1, others) for row in values]
            return np.mean([low < 0.5 < high for _, low, high in intervals])

        assert coverage(folds - 1) == pytest.approx(0.95, abs=0.012)
        assert coverage(10**9) < 0.92  # as if the folds were independent

    def test_folds_that_agree_do_not_know_everything(self):
        hits = np.ones((1, 50), bool)
        found = fold_interval([1.0] * 5, 50, 200, accuracy_interval(hits).image_error)
        assert 0.85 < found.low < 0.95
        assert found.high == 1.0

    def test_errors(self):
        with pytest.raises(ValueError, match="values: must be of at least 2 folds, got 1"):
            fold_interval([0.5], 10, 10)
        with pytest.raises(ValueError, match="tested, others: must be at least 1 image each, got 10 and 0"):
            fold_interval([0.5, 0.6], 10, 0)


class TestBalancedDifference:
    LABELS = np.repeat([0, 1, 2], [60, 30, 10])

    def test_it_is_the_difference_of_the_balanced_accuracies(self):
        random = np.random.default_rng(0)
        first, second = (random.random((3, 100)) < share for share in (0.8, 0.6))
        found = balanced_difference_interval(first, second, self.LABELS)
        parts = [balanced_interval(one, self.LABELS).estimate for one in (first, second)]
        assert found.estimate == pytest.approx(parts[0] - parts[1])
        other = balanced_difference_interval(second, first, self.LABELS)
        assert (other.low, other.high) == pytest.approx((-found.high, -found.low))

    def test_of_one_class_it_is_the_plain_difference(self):
        random = np.random.default_rng(1)
        first, second = (random.random((2, 100)) < 0.7 for _ in range(2))
        found = balanced_difference_interval(first, second, np.zeros(100, int))
        plain = difference_interval(first, second)
        assert found.estimate == pytest.approx(plain.estimate)
        assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=0.01)

    def test_a_rare_class_that_is_never_found_shows(self):
        first, second = (np.ones((3, 100), bool) for _ in range(2))
        first[:, :8] = False
        second[:, 90:] = False
        assert difference_interval(first, second).low < 0
        assert balanced_difference_interval(first, second, self.LABELS).low > 0

    def test_it_holds_the_truth(self):
        """Two networks of 80 and 70 % of each class, answers of an image alike in half of the cases."""
        random, held = np.random.default_rng(2), 0
        for _ in range(300):
            draws = random.random(100), random.random(100)
            alike = random.random(100) < 0.5
            first, second = draws[0] < 0.8, np.where(alike, draws[0], draws[1]) < 0.7
            found = balanced_difference_interval(first[None], second[None], self.LABELS)
            held += found.low <= 0.1 <= found.high
        assert held >= 0.93 * 300

    def test_labels_of_other_images(self):
        with pytest.raises(ValueError, match="labels: must be one for each of the 4 images, got"):
            balanced_difference_interval(hits("1010"), hits("1010"), np.zeros(5, int))


def test_no_end_that_is_not_0_reads_0():
    assert [points(share) for share in (0.0, 0.00051, 0.00049, -0.00049, 0.000049, 1e-9)] == [
        "+0.0",
        "+0.1",
        "+0.05",
        "−0.05",
        "+0.005",
        "+0.0",
    ]


def test_no_difference_has_no_minus():
    assert points(-0.0) == "+0.0"


def test_two_seeds_that_vary_on_one_side_need_an_interval_of_their_own():
    """A row of LOG.md, L123: no difference but that of the draw, seeds of one side move all logits by N(0, 0.4)."""
    random = np.random.default_rng(0)
    truth = -0.00326  # the mean of a logistic function over such moves is less: by numerical integration
    missed = np.zeros(2)
    for _ in range(400):
        base = random.normal(3, 1.5, 1000)
        sides = [
            random.random((2, 1000)) < 1 / (1 + np.exp(-base - sd * random.normal(size=(2, 1)))) for sd in (0.4, 0)
        ]
        whole = difference_interval(*sides)
        low, high = interval_over_seeds(*(side.mean(1) for side in sides))
        outside = not whole.low <= truth <= whole.high
        missed += outside, outside and not low <= truth <= high
    assert 0.05 < missed[0] / 400 < 0.13
    assert missed[1] / 400 < 0.055
