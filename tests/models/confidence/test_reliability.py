import numpy as np
import pytest

from capsella.evaluation import calibration


def test_bins_hold_means_of_confidence_and_accuracy():
    curve = calibration(np.array([0.1, 0.3, 0.6, 0.9, 1.0]), np.array([False, True, False, True, True]), bins=2)
    assert curve.edges.tolist() == [0, 0.5, 1]
    assert curve.counts.tolist() == [2, 3]
    np.testing.assert_allclose(curve.confidence, [0.2, 2.5 / 3])
    np.testing.assert_allclose(curve.accuracy, [0.5, 2 / 3])
    assert curve.expected_error == pytest.approx((2 * 0.3 + 3 * 0.5 / 3) / 5)


def test_expected_error_is_that_of_its_definition():
    """Naeini, Cooper, Hauskrecht 2015: over bins, the share of images times |accuracy − confidence|."""
    generator = np.random.default_rng(0)
    confidence, correct = generator.random(500), generator.random(500) < 0.7
    wanted = 0.0
    for bin_ in range(15):
        inside = [at for at in range(500) if bin_ / 15 < confidence[at] <= (bin_ + 1) / 15]
        gap = sum(correct[at] for at in inside) / len(inside) - sum(confidence[at] for at in inside) / len(inside)
        wanted += len(inside) / 500 * abs(gap)
    assert calibration(confidence, correct).expected_error == pytest.approx(wanted, abs=1e-12)


def test_empty_bins_are_not_a_number_and_weigh_nothing():
    curve = calibration(np.array([0.95]), np.array([True]))
    assert curve.counts.tolist() == [0] * 14 + [1]
    assert np.isnan(curve.accuracy[:14]).all()
    assert curve.expected_error == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("confidence", "correct", "bins", "message"),
    [
        ([], [], 15, "at least 1, got 0 and 0"),
        ([0.5], [True, False], 15, "same length, at least 1, got 1 and 2"),
        ([1.2], [True], 15, r"confidence: must be in \[0, 1\], got 1.2"),
        ([np.nan], [True], 15, r"confidence: must be in \[0, 1\], got nan"),
        ([0.5], [True], 0, "bins: must be at least 1, got 0"),
    ],
)
def test_bad_input_is_named(confidence, correct, bins, message):
    with pytest.raises(ValueError, match=message):
        calibration(np.array(confidence), np.array(correct), bins)
