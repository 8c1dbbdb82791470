import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from capsella.evaluation import calibration


def test_bins_hold_means_of_confidence_and_accuracy():
    curve = calibration(np.array([0.1, 0.3, 0.6, 0.9, 1.0]), np.array([False, True, False, True, True]), bins=2)
    assert curve.edges.tolist() == [0, 0.5, 1]
    assert curve.counts.tolist() == [2, 3]
    np.testing.assert_allclose(curve.confidence, [0.2, 2.5 / 3])
    np.testing.assert_allclose(curve.accuracy, [0.5, 2 / 3])
    assert curve.expected_error == pytest.approx((2 * 0.3 + 3 * 0.5 / 3) / 5)


def test_expected_error_agrees_with_torchmetrics():
    generator = np.random.default_rng(0)
    confidence, correct = generator.random(500), generator.random(500) < 0.7
    theirs = binary_calibration_error(torch.tensor(confidence), torch.tensor(correct).int(), n_bins=15, norm="l1")
    assert calibration(confidence, correct).expected_error == pytest.approx(theirs.item(), abs=1e-6)


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
