"""Intervals by hand, properties over groups of images, and by simulation (slow): how often they hold the truth."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import linregress, norm, t

from capsella.errors import ArgumentError
from capsella.evaluation import (
    accuracy_interval,
    auc_interval,
    detectable_difference,
    difference_interval,
    proportion_interval,
    rank_test,
    slope_interval,
    wilson_interval,
)
from capsella.evaluation.statistics import VarianceComponent, cluster_variance, effective_sample_fraction, influence

EACH = 20  # images of a group


def correct(*rows):
    return np.array([[letter == "1" for letter in row] for row in rows])


def width(interval):
    low, high = (interval.low, interval.high) if hasattr(interval, "low") else interval
    return high - low


def sampled(seed, groups=30, spread=0.25):
    """Correctness of two networks on groups that are each easier or harder than others, as patients are."""
    generator = np.random.default_rng(seed)
    easy = np.clip(generator.normal(0.8, spread, groups), 0, 1).repeat(EACH)
    return generator.random((2, 1, groups * EACH)) < easy, np.arange(groups).repeat(EACH)


class TestByHand:
    def test_one_seed_is_agresti_and_coull(self):
        interval = accuracy_interval(correct("1" * 15 + "0" * 5))
        middle = 17 / 24
        half = t.ppf(0.975, 19) * (middle * (1 - middle) / 24) ** 0.5
        assert (interval.estimate, interval.seed_error, interval.degrees) == (0.75, None, 19)
        assert (interval.low, interval.high) == pytest.approx((middle - half, middle + half))

    def test_one_pair_is_agresti_and_min(self):
        interval = difference_interval(correct("1111100000"), correct("1100011000"))
        middle = 1 / 12
        half = t.ppf(0.975, 9) * ((6 / 12 - middle**2) / 12) ** 0.5
        assert interval.estimate == pytest.approx(0.1)
        assert (interval.low, interval.high) == pytest.approx((middle - half, middle + half))

    def test_seeds_add_their_variance(self):
        interval = accuracy_interval(correct("1111111100", "1111000000"))  # accuracies of 0.8 and 0.4
        per_image = np.array([1] * 4 + [0.5] * 4 + [0] * 2)
        middle = (per_image.sum() + 2) / 14
        images = (((per_image**2).sum() + 2) / 14 - middle**2) / 14
        seeds = 0.08 / 2
        assert interval.image_error**2 == pytest.approx(images)
        assert interval.seed_error**2 == pytest.approx(seeds)
        assert interval.degrees == pytest.approx((images + seeds) ** 2 / (images**2 / 9 + seeds**2 / 1))
        assert interval.standard_error == pytest.approx((images + seeds) ** 0.5)
        assert (interval.low, interval.high) == (0, 1)  # two seeds that differ this much prove nothing

    def test_seeds_of_one_side_alone_count(self):
        one = correct("1111100000")
        several = difference_interval(correct("1111111100", "1111000000"), one)
        assert several.seed_error == pytest.approx((0.08 / 2) ** 0.5)
        assert several.standard_error > difference_interval(correct("1111111100"), one).standard_error

    def test_a_slope_is_that_of_least_squares(self):
        generator = np.random.default_rng(0)
        covariate = generator.random(500)
        first, second = generator.random((2, 1, 500)) < 0.5 + 0.4 * covariate * np.array([1, -1])[:, None, None]
        found = slope_interval(first, second, covariate)
        expected = linregress(covariate / covariate.std(), first[0].astype(float) - second[0])
        assert found.estimate == pytest.approx(expected.slope)
        assert found.seed_error is None
        assert found.image_error == pytest.approx(expected.stderr, rel=0.1)  # that of residuals of unequal variance
        assert found.high - found.estimate == pytest.approx(found.image_error * t.ppf(0.975, 498))
        whole = slope_interval(first.repeat(3, 1), second.repeat(3, 1), covariate.repeat(3), np.arange(500).repeat(3))
        assert whole.image_error == pytest.approx(found.image_error, rel=0.01)  # copies add nothing
        with pytest.raises(ArgumentError, match="covariate"):
            slope_interval(first, second, np.ones(500))

    def test_agreement_is_not_certainty(self):
        same = correct("1" * 90 + "0" * 10)
        difference = difference_interval(same, same)
        assert difference.estimate == 0
        assert -difference.low == pytest.approx(difference.high)
        assert 0 < difference.high < 0.03
        perfect = accuracy_interval(correct("1" * 50))
        assert perfect.high == perfect.estimate == 1
        assert 0.85 < perfect.low < 0.95

    def test_the_detectable_difference(self):
        interval = difference_interval(correct("1" * 80 + "0" * 20), correct("1" * 70 + "0" * 10 + "1" * 5 + "0" * 15))
        assert interval.detectable == pytest.approx((t.ppf(0.975, 99) + norm.ppf(0.8)) * interval.standard_error)
        expected = detectable_difference(np.zeros(100, int), 0.25, balanced=False)
        assert expected == pytest.approx((norm.ppf(0.975) + norm.ppf(0.8)) * (0.25 / 100) ** 0.5)
        labels = np.repeat([0, 1], [80, 20])
        assert detectable_difference(labels, 0.25, balanced=True) > expected
        assert detectable_difference(labels, 0.25, balanced=False, units=25) == pytest.approx(2 * expected)

    def test_each_class_counts_the_same(self):
        interval = accuracy_interval(correct("1" * 90 + "0" * 5 + "1" * 5), labels=np.array([0] * 90 + [1] * 10))
        assert interval.estimate == 0.75
        large, small = (k * (n - k) / n**2 / (n - 4) for k, n in ((92, 94), (7, 14)))
        assert interval.image_error == pytest.approx(((large + small) / 4) ** 0.5)
        assert accuracy_interval(correct("1100"), labels=np.array([0, 0, 2, 2])).estimate == 0.5  # without class 1

    def test_a_balanced_difference_is_that_of_the_balanced_accuracies(self):
        random, labels = np.random.default_rng(0), np.repeat([0, 1, 2], [60, 30, 10])
        first, second = (random.random((3, 100)) < share for share in (0.8, 0.6))
        interval, other = (difference_interval(*pair, labels=labels) for pair in ((first, second), (second, first)))
        each = [accuracy_interval(network, labels=labels).estimate for network in (first, second)]
        assert interval.estimate == pytest.approx(each[0] - each[1])
        assert (other.low, other.high) == pytest.approx((-interval.high, -interval.low))
        first, second = np.ones((3, 100), bool), np.ones((3, 100), bool)
        first[:, :8], second[:, 90:] = False, False  # the second never finds a rare class
        assert difference_interval(first, second).low < 0 < difference_interval(first, second, labels=labels).low

    def test_score_intervals(self):
        low, high = wilson_interval(2, 10)
        z, n, p = 1.959964, 10, 0.2
        centre, half = p + z**2 / 2 / n, z * (p * (1 - p) / n + z**2 / 4 / n**2) ** 0.5
        assert (low, high) == pytest.approx(((centre - half) / (1 + z**2 / n), (centre + half) / (1 + z**2 / n)))
        low, high = auc_interval(1.0, 20, 20)
        assert (0.8 < low < 0.95, high) == (True, 1)
        assert auc_interval(0.0, 20, 20) == pytest.approx((0, 1 - low))


def test_arguments_that_do_not_fit():
    for call, argument in (
        (lambda: accuracy_interval(np.zeros((2, 3))), "correct"),
        (lambda: accuracy_interval(np.ones((1, 50), bool), np.zeros(49, int)), "groups"),
        (lambda: difference_interval(np.zeros((1, 3), bool), np.zeros((1, 4), bool)), "second"),
        (lambda: accuracy_interval(correct("1100"), labels=np.array([0, 1, 2])), "labels"),
    ):
        with pytest.raises(ArgumentError) as error:
            call()
        assert error.value.argument == argument


class TestGroups:
    def test_the_number_of_groups_counts_even_if_they_agree(self):
        """They may be alike by luck."""
        hits = np.tile([True, True, True, False], 50)[None]
        groups = np.arange(200) // 4  # of each group, three of four
        grouped, plain = accuracy_interval(hits, groups), accuracy_interval(hits)
        assert grouped.image_error == plain.image_error
        assert (grouped.degrees, plain.degrees) == (pytest.approx(49), pytest.approx(199))
        fraction = (t.ppf(0.975, 199) / t.ppf(0.975, 49)) ** 2
        assert effective_sample_fraction(hits[0], groups) == pytest.approx(fraction)

    def test_large_and_small_groups_are_corrected_as_by_the_matrices_of_bell_and_mccaffrey(self):
        generator = np.random.default_rng(0)
        group, label = generator.integers(0, 7, 300), generator.integers(0, 3, 300)
        moves = influence(generator.random(300), label)
        shares = np.stack([np.bincount(group[label == k], minlength=7) for k in range(3)], 1)
        shares = shares / shares.sum(0)
        root = 1 / np.sqrt(1 - shares)
        B = sum(np.diag(root[:, c] * shares[:, c]) @ (np.eye(7) - shares[:, c]) for c in range(3))
        trace = np.trace(B @ B.T)
        sums = sum(root[:, c] * np.bincount(group[label == c], moves[label == c], 7) for c in range(3))
        variance, dof = cluster_variance(moves, group, VarianceComponent(0.0, 299), label)
        assert variance == pytest.approx((shares.sum(1) ** 2).sum() / trace * (sums**2).sum())
        assert dof <= trace**2 / np.trace(B @ B.T @ B @ B.T) + 1e-9

    def test_copies_of_every_image_prove_no_more_than_the_images(self):
        hits = np.random.default_rng(0).random((1, 200)) < 0.8
        assert accuracy_interval(hits, np.zeros(200, int)) == accuracy_interval(hits)  # a single group
        copied, groups = hits.repeat(10, 1), np.arange(200).repeat(10)
        assert width(accuracy_interval(copied, groups)) == pytest.approx(width(accuracy_interval(hits)), rel=0.05)
        assert effective_sample_fraction(copied[0], groups) == pytest.approx(0.1, rel=0.05)

    def test_a_patient_that_a_network_cannot_read_widens_the_interval(self):
        (first, second), groups = sampled(3, groups=10)
        second[0, groups == 4] = False
        plain, grouped = difference_interval(first, second), difference_interval(first, second, groups)
        assert grouped.estimate == plain.estimate
        assert plain.low > 0 > grouped.low
        assert grouped.degrees == pytest.approx(9)
        (first, second), groups = sampled(5)
        labels = groups % 3
        second[0, groups == 4] = False
        for interval in (
            lambda groups: accuracy_interval(first, groups, labels=labels),
            lambda groups: difference_interval(first, second, groups, labels=labels),
        ):
            assert width(interval(groups)) > 1.5 * width(interval(None))


@pytest.mark.slow
class TestCoverage:
    """How often an interval holds the truth, over many draws of images, groups and seeds."""

    @pytest.mark.parametrize(("seeds", "images", "seed_sd"), [(1, 150, 0.0), (3, 150, 0.3), (5, 80, 0.3)])
    def test_nineteen_times_in_twenty(self, seeds, images, seed_sd):
        random = np.random.default_rng(1)
        many = random.normal(0, np.hypot(seed_sd, 2), 200_000)
        truth = [expit(mean + many).mean() for mean in (2.0, 1.4)]
        held, trials = np.zeros(3), 400
        for _ in range(trials):
            image = random.normal(0, 2, images)
            first, second = (
                random.random((seeds, images)) < expit(mean + image + random.normal(0, seed_sd, (seeds, 1)))
                for mean in (2.0, 1.4)
            )
            one, both = accuracy_interval(first), difference_interval(first, second)
            held += one.low <= truth[0] <= one.high, both.low <= truth[0] - truth[1] <= both.high, both.low > 0
        accuracy, difference, shown = held / trials
        assert 0.925 <= accuracy <= 0.995
        assert 0.925 <= difference <= 0.995
        assert shown > 0.2  # an interval of everything would always hold it

    def test_new_groups(self):
        truth = np.clip(np.random.default_rng(0).normal(0.8, 0.25, 1_000_000), 0, 1).mean()
        held = {"groups": 0, "images": 0, "single run": 0}
        for seed in range(400):
            (hits, _), groups = sampled(seed)
            for name, of in (("groups", groups), ("images", None)):
                interval = accuracy_interval(hits, of)
                held[name] += interval.low <= truth <= interval.high
            low, high = proportion_interval(hits[0], groups)
            held["single run"] += low <= truth <= high
        assert min(held["groups"], held["single run"]) / 400 > 0.92
        assert held["images"] / 400 < 0.75

    @pytest.mark.parametrize("sizes", [[60, 30, 20, 10, 10, 10, 5, 5], [200, *[20] * 7]])
    def test_a_patient_with_many_images_makes_no_interval_too_narrow(self, sizes):
        generator, groups = np.random.default_rng(0), np.repeat(np.arange(len(sizes)), sizes)
        labels = np.arange(len(groups)) % 2
        truth = expit(generator.normal(1.5, 1, 1_000_000)).mean()
        held = dict.fromkeys(("accuracy", "balanced", "single run", "no winner"), 0)
        for _ in range(300):
            patients = generator.normal(1.5, 1, len(sizes))
            both = expit(patients + generator.normal(0, 0.7, (2, len(sizes))))[:, groups]
            hits = generator.random(len(groups)) < expit(patients)[groups]
            first, second = generator.random((2, 1, len(groups))) < both[:, None]
            accuracy, balanced = (
                accuracy_interval(hits[None], groups),
                accuracy_interval(hits[None], groups, labels=labels),
            )
            held["accuracy"] += accuracy.low <= truth <= accuracy.high
            held["balanced"] += balanced.low <= truth <= balanced.high
            low, high = proportion_interval(hits, groups)
            held["single run"] += low <= truth <= high
            apart = difference_interval(first, second, groups)
            held["no winner"] += apart.low <= 0 <= apart.high
        assert min(held.values()) / 300 > 0.93, held

    def test_rare_classes(self):
        random = np.random.default_rng(0)
        labels, truth = np.repeat(np.arange(4), (100, 100, 100, 3)), np.array([0.9, 0.9, 0.9, 0.6])
        intervals = [accuracy_interval(random.random((1, 303)) < truth[labels], labels=labels) for _ in range(400)]
        assert np.mean([interval.low <= truth.mean() <= interval.high for interval in intervals]) > 0.93

    def test_a_guessing_network_is_seldom_better_than_guessing(self):
        random, labels = np.random.default_rng(0), np.repeat(np.arange(4), (100, 60, 35, 5))
        guesses = [accuracy_interval(random.random((3, 200)) < 0.25, labels=labels) for _ in range(400)]
        assert np.mean([interval.low > 0.25 for interval in guesses]) < 0.04

    @pytest.mark.parametrize(
        ("images", "seeds", "patients", "training_sd"),
        [(300, 1, 0, 0.0), (300, 1, 0, 0.3), (800, 1, 0, 0.2), (800, 2, 0, 0.4), (400, 1, 40, 0.3), (800, 1, 100, 0.0)],
    )
    def test_a_comparison_over_folds(self, images, seeds, patients, training_sd):
        """Two equally good networks; each image, patient, and training of a fold has an effect of its own."""
        random, held, folds = np.random.default_rng(0), 0, 5
        for _ in range(400):
            group = random.integers(0, patients, images) if patients else np.arange(images)
            fold = group % folds
            common = random.normal(2.5, 1.5, images) + 0.7 * random.normal(size=group.max() + 1)[group]
            sides = []
            for _ in range(2):
                own = common + 0.35 * random.normal(size=group.max() + 1)[group] * (patients > 0)
                level = training_sd * random.normal(size=(seeds, folds))
                sides.append(random.random((seeds, images)) < expit(own + level[:, fold]))
            interval = difference_interval(*sides, group if patients else None, fold)
            held += interval.low <= 0 <= interval.high
        assert 0.93 <= held / 400 <= 0.99

    def test_paired_seeds_cancel_what_both_networks_share(self):
        random = np.random.default_rng(0)
        draws = random.normal(0, 1, size=(10, 1))  # an easy or a hard draw of training images
        first, second = (random.random((10, 2000)) < expit(2 + draws + gain) for gain in (0.2, 0.0))
        paired, apart = (difference_interval(first, second, paired_seeds=paired) for paired in (True, False))
        assert paired.estimate == apart.estimate
        assert paired.seed_error < apart.seed_error / 3

    def test_ranks_over_objects_see_what_a_mean_hides(self):
        groups = np.repeat(np.arange(20), 50)
        first, second = np.ones((1, 1000), bool), np.ones((1, 1000), bool)
        second[0, ::50] = False  # one image of every object
        first[0, :15] = False  # many of a single one
        assert rank_test(first, second, groups) < 0.001
        assert rank_test(first, first, groups) == 1
