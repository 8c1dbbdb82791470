"""Scores by hand; distances, normalised scores and thresholds: by hand, and as often as promised."""

import copy
import math

import pytest
import torch
from torch import nn

from capsella.data import ImageSet
from capsella.errors import ArgumentError
from capsella.models import ImageClassifier, create_model
from capsella.models.inference import optimize_for_inference, predict_with_scores, without_unused_decoder
from capsella.types import Output
from capsella.uncertainty import OODDetector, class_logits, energy_score, fit_ood_detector, msp_score
from capsella.uncertainty.ood import (
    KIND,
    LABORATORY,
    REASONS,
    fit_detector,
    fit_gaussian,
    largest_scores,
    low_level_features,
    normalize_score,
)


def images_of(number, seed, classes=("0", "1", "2")):
    pixels = torch.randint(256, (number, 1, 20, 20), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(number) % 3, classes)


def batch_of(number, seed):
    return images_of(number, seed).images.float() / 255


def test_low_level_by_hand():
    """Columns of 0 and 1: half bright, no difference downwards, 1 across, and none of both."""
    images = torch.tensor([0.0, 1.0]).repeat(2, 1, 4, 2)
    mean, deviation, down, across, both = low_level_features(images)[0].tolist()
    assert (mean, deviation) == (0.5, pytest.approx(0.5))
    assert (down, both) == (pytest.approx(math.log(1e-3)),) * 2
    assert across == pytest.approx(math.log(1.001), abs=1e-6)


def test_doubt_and_energy_by_hand():
    logits = torch.tensor([[math.log(6), math.log(3), 0.0]], dtype=torch.float64)  # 0.6, 0.3 and 0.1
    assert float(msp_score(logits)) == pytest.approx(math.log(0.4 / 0.6))
    assert float(energy_score(logits)) == pytest.approx(-math.log(10))
    assert float(msp_score(torch.tensor([[900.0, 0.0]]))) == -900  # where the probability is 1 in any precision


def test_logits_are_a_networks_own_or_log_odds():
    activations = torch.tensor([[0.9, 0.5]])
    assert class_logits(Output(activations)).tolist()[0] == pytest.approx([math.log(9), 0], abs=1e-6)
    assert class_logits(Output(activations, logits=torch.ones(1, 2))).tolist() == [[1, 1]]


@pytest.fixture(scope="module")
def capsnet():
    torch.manual_seed(0)
    model = create_model("mazzia2021_efficient_capsnet", image_size=20, classes=3).eval()
    model.ood_detector = fit_ood_detector(model, images_of(40, 0), images_of(40, 1))
    return model


def test_distance_is_mahalanobis():
    """Two classes around (0, 0) and (10, 0), with deviations 1 and 3: shrinking hardly matters with many."""
    labels = torch.arange(20_000) % 2
    features = torch.randn(20_000, 2) * torch.tensor([1.0, 3.0])
    features[:, 0] += 10 * labels
    gaussian = fit_gaussian(features, labels, 2)
    distance = gaussian.distance(torch.tensor([[12.0, 0.0], [0.0, 6.0], [10.0, 0.0]]), torch.tensor([1, 0, 0]))
    assert (distance * math.sqrt(2)).tolist() == pytest.approx([2, 2, 10], rel=0.05)


def test_one_image_and_a_class_without():
    gaussian = fit_gaussian(torch.tensor([[1.0, 2.0]]), torch.tensor([1]), 3)
    assert gaussian.means.tolist() == [[1, 2]] * 3
    assert gaussian.distance(torch.tensor([[1.0, 2.0]]), torch.tensor([0])).isfinite().all()
    with pytest.raises(ArgumentError):
        fit_gaussian(torch.tensor([[math.nan]]), torch.tensor([0]), 1)


def test_a_normalized_score_rises_and_is_a_proportion_below_the_tail():
    validation = torch.arange(100.0)
    assert (normalize_score(torch.linspace(-10, 300, 500), validation).diff() >= 0).all()
    low, middle = normalize_score(torch.tensor([-1.0, 50.0]), validation).tolist()
    assert (low, middle) == (0, pytest.approx(-math.log(51 / 101)))
    beyond = normalize_score(torch.tensor([200.0, 201.0]), validation)
    assert float(beyond.diff()) == pytest.approx(1 / 5.5, rel=1e-3)  # the tail exceeds its start by 5.5 on average
    score = torch.tensor([98.0, 150.0], requires_grad=True)
    normalize_score(score, validation).sum().backward()
    assert (score.grad > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("scores", [1, 3, 5])
def test_the_false_positive_rate_holds(scores):
    """However many scores there are: no image shapes the tails by which it is judged."""
    generator, names, flagged = torch.Generator().manual_seed(0), list(REASONS)[-scores:], []
    gaussian = fit_gaussian(torch.rand(9, 2), torch.arange(9) % 2, 2)
    gaussians = dict.fromkeys(set(names) - {"reconstruction", "rotation"}, gaussian)
    for _ in range(100):
        columns = list(torch.rand(60, scores, generator=generator).unbind(1))
        distributions = {name: column.sort().values for name, column in zip(names, columns, strict=True)}
        detector = OODDetector(gaussians, distributions, largest_scores(columns).sort().values)
        new = torch.rand(2000, scores, generator=generator)
        flagged.append((detector.normalized_scores(new).amax(1) > detector.threshold(0.05)).float().mean())
    assert float((torch.stack(flagged) <= 0.05).float().mean()) >= 0.83  # 0.9, minus three deviations


def test_changed_images_set_the_threshold_of_another_kind():
    columns = {name: torch.rand(100) for name in ("reconstruction", "rotation")}
    columns["rotation"] /= 9
    detector = fit_detector({}, columns, {name: values + 5 for name, values in columns.items()})
    assert detector.threshold(0.05) < detector.kind_threshold(0.05) < math.inf
    reasons = []
    for value in (5.0, 50.0):
        (normalized,) = detector.normalized_scores(torch.tensor([[value, 0.0]]))
        reasons.append(detector.reason(normalized, "ring", 0.05))
    assert reasons == [f"{answer} ({REASONS['reconstruction']})" for answer in (LABORATORY, KIND)]
    assert fit_detector({}, columns).kind_threshold(0.05) is None


def test_too_few_validation_images_flag_nothing():
    values = torch.rand(44).sort().values
    detector = OODDetector({}, {"reconstruction": values}, values)
    assert detector.threshold(0.05) == math.inf
    assert not detector.supports(0.05)
    with pytest.raises(ArgumentError):
        detector.threshold(5)


def test_a_network_with_a_decoder_has_all_scores_and_a_cnn_two(capsnet):
    assert capsnet.ood_detector.scores == ("low_level", "features", "poses", "reconstruction", "rotation")
    assert without_unused_decoder(capsnet, capsnet.ood_detector) is capsnet
    assert not without_unused_decoder(capsnet, None).has_decoder
    cnn = create_model("hinton2018_cnn", image_size=20, classes=3)
    detector = fit_ood_detector(cnn, images_of(40, 0), images_of(40, 1))
    assert detector.scores == ("low_level", "features", "rotation")
    assert cnn.training


class UpOrDown(ImageClassifier):
    """Whether the upper half is brighter than the lower: another answer for every image that is turned."""

    name = "up_or_down"

    def __init__(self, upside):
        super().__init__((20, 20), 1, ("up", "down", "neither"))
        self.upside, self.scale = upside, nn.Parameter(torch.tensor(1000.0))

    def forward(self, images, labels=None):
        upper, lower = images[:, 0, :10].mean((1, 2)), images[:, 0, 10:].mean((1, 2))
        difference = upper - lower if self.upside else upper + lower
        return Output((torch.stack([difference, -difference, 0 * difference], 1) * self.scale).softmax(1))


@pytest.mark.parametrize("upside", [True, False])
def test_images_are_turned_only_where_usual_answers_stay(upside):
    detector = fit_ood_detector(UpOrDown(upside), images_of(40, 0), images_of(40, 1))
    assert ("rotation" in detector.scores) is not upside


def test_an_answer_that_changes_when_turned_is_refused():
    torch.manual_seed(0)
    model = UpOrDown(False)
    model.ood_detector = fit_ood_detector(model, images_of(40, 0), images_of(40, 1))
    model.upside = True
    _, scores = predict_with_scores(model, batch_of(8, 2), model.ood_detector)
    assert (scores.amax(1) > model.ood_detector.threshold(0.1)).all()
    assert model.ood_detector.reason(scores[0], "up", 0.1) == REASONS["rotation"]


def test_strange_images_are_flagged_with_a_reason(capsnet):
    detector = capsnet.ood_detector
    with torch.no_grad():
        _, usual = predict_with_scores(capsnet, batch_of(8, 2), detector)
        _, strange = predict_with_scores(capsnet, torch.full((2, 1, 20, 20), 0.5), detector)
        _, quick = predict_with_scores(optimize_for_inference(capsnet), batch_of(8, 2), detector)
    assert (usual.amax(1) <= detector.threshold(0.1)).sum() >= 6
    assert (strange.amax(1) > detector.threshold(0.1)).all()
    assert detector.reason(strange[0], "ring", 0.1) == REASONS["low_level"]
    assert detector.reason(torch.tensor([0.0, 0.0, 1.0, 0.0]), "ring", 0.1) == "shape unlike any ring"
    torch.testing.assert_close(usual, quick, rtol=1e-3, atol=1e-3)


def test_dimmed_images_are_of_another_laboratory_and_flat_ones_of_another_kind(capsnet):
    model = copy.copy(capsnet)
    detector = fit_ood_detector(model, images_of(40, 0), images_of(40, 1), change=lambda pixels: pixels * 0.8)
    answers = []
    for images in (batch_of(8, 2) * 0.8, torch.full((8, 1, 20, 20), 0.5)):
        with torch.no_grad():
            _, scores = predict_with_scores(model, images, detector)
        assert (scores.amax(1) > detector.threshold(0.1)).all()
        answers.append([detector.reason(row, "ring", 0.1).partition(" (")[0] for row in scores])
    assert answers[0].count(LABORATORY) >= 6
    assert answers[1] == [KIND] * 8
