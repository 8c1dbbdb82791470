"""Temperature, probabilities and prediction sets on answers whose calibration is known."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from capsella.errors import ArgumentError, CapsellaError
from capsella.uncertainty import Calibration, calibration_curve, fit_calibration, images_for_coverage


def predictions(number: int, temperature: float, seed: int = 0, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax activations of logits that are `temperature` times too large, and labels drawn from the true ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(number, classes, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return (temperature * logits).softmax(1), labels


def calibration_error(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
    confidence, predicted = probabilities.max(1)
    return calibration_curve(confidence.numpy(), (predicted == labels).numpy()).expected_error


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_of_a_softmax_is_found(temperature):
    fitted = fit_calibration(*predictions(20_000, temperature))
    assert (fitted.logits, fitted.images) == ("log", 20_000)
    assert fitted.temperature == pytest.approx(temperature, rel=0.05)
    activations, labels = predictions(20_000, temperature, seed=1)
    assert calibration_error(fitted.probabilities(activations), labels) < 0.02


@pytest.mark.parametrize("kind", ["log", "logit"])
def test_the_logits_of_capsules_are_chosen_by_loss(kind):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(20_000, 4, generator=generator) - 2
    activations = logits.sigmoid() if kind == "logit" else logits.clamp_max(-1e-3).exp()
    if kind == "log":
        logits = activations.log()
    labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
    fitted = fit_calibration(activations, labels)
    assert fitted.logits == kind
    assert fitted.temperature == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("number", [1, 1000])
def test_images_without_a_mistake_do_not_make_sure(number):
    """Rule of succession: n all right ones make (n + 1)/(n + 2)."""
    activations = torch.full((number, 3), 0.1)
    activations[:, 1] = 0.8
    fitted = fit_calibration(activations, torch.ones(number, dtype=torch.long))
    assert float(fitted.probabilities(activations[0])[1]) == pytest.approx((number + 1) / (number + 2), abs=1e-5)


def test_probabilities_sum_to_one_and_keep_the_order_also_at_the_ends():
    fitted = fit_calibration(*predictions(500, 2.0))
    ends = torch.tensor([[0.0, 1.0, 0.5, 1e-30, 1 - 2**-24], [0.0] * 5, [1.0] * 5])
    for kind in ("log", "logit"):
        probabilities = Calibration(**{**vars(fitted), "logits": kind}).probabilities(ends)
        assert probabilities.isfinite().all()
        torch.testing.assert_close(probabilities.sum(1), torch.ones(3, dtype=torch.float64))
        assert probabilities[0].argmax() == 1
        torch.testing.assert_close(probabilities[1:], torch.full((2, 5), 0.2, dtype=torch.float64))


SHARES = torch.tensor([0.9, 0.1])


def balanced(number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What an ideal network says that learned two classes alike, of images of which nine in ten are of the first."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(SHARES, number, replacement=True, generator=generator)
    x = torch.randn(number, generator=generator) + 2.5 * labels  # two Gaussians
    odds = 2.5 * x - 2.5**2 / 2
    return torch.stack([-odds, odds], 1).mul(0.5).softmax(1), labels


def test_a_rare_class_s_probability_holds_after_balanced_training():
    """Its prior brings the draws back to the images as they are; a temperature alone is right on average only."""
    activations, labels = balanced(20_000, 1)
    rare = activations.argmax(1) == 1
    right = float((labels[rare] == 1).double().mean())
    prior = (SHARES / 0.5).log().tolist()
    plain, fitted = (fit_calibration(*balanced(2_000, 2), prior=p) for p in (None, prior))
    said = {one: float(fit.probabilities(activations)[rare, 1].mean()) for one, fit in ((0, plain), (1, fitted))}
    assert right < 0.75
    assert said[0] > right + 0.1
    assert said[1] == pytest.approx(right, abs=0.02)
    assert fitted.temperature == pytest.approx(1, abs=0.15)
    assert Calibration.from_dict(json.loads(json.dumps(asdict(fitted)))) == fitted
    assert fitted.sets(activations, 0.95).gather(1, activations.argmax(1, keepdim=True)).all()  # the predicted class
    sets = fitted.sets(activations, 0.95)
    assert float(sets.gather(1, labels[:, None]).double().mean()) == pytest.approx(0.95, abs=0.03)
    p, few = fitted.probabilities(activations), fitted.sets(activations, 0.6)
    least, most = p.masked_fill(~few, math.inf).amin(1), p.masked_fill(few, -math.inf).amax(1)
    assert (most < least).all()  # no class is left out that is likelier than one inside
    assert few[rare].sum(1).max() == 2  # taken for the rare one, though the other is likelier


@pytest.mark.parametrize("coverage", [0.5, 0.95])
def test_sets_are_those_of_conformal_p_values(coverage):
    """Vovk et al. 2005: a class is left out where (1 + #{scores at least as large}) / (n + 1) ≤ 1 − coverage."""
    fitted = fit_calibration(*predictions(73, 1.5))
    activations = predictions(200, 1.5, seed=1)[0]
    probabilities = fitted.probabilities(activations)
    scores = torch.tensor(fitted.scores, dtype=torch.float64)
    p_values = (1 + (scores >= (1 - probabilities)[..., None]).sum(-1)) / 74
    expected = (p_values > 1 - coverage + 1e-12) | (probabilities == probabilities.max(1, keepdim=True).values)
    assert torch.equal(fitted.sets(activations, coverage), expected)


def test_too_few_images_give_all_classes():
    fitted = fit_calibration(*predictions(18, 1.0))
    assert fitted.quantile(0.95) == math.inf
    assert fitted.sets(predictions(4, 1.0)[0], 0.95).all()
    assert fit_calibration(*predictions(19, 1.0)).quantile(0.95) < 1
    assert [images_for_coverage(coverage) for coverage in (0.5, 0.9, 0.95, 0.99)] == [1, 9, 19, 99]


def test_arguments_that_do_not_fit():
    fitted = fit_calibration(*predictions(20, 1.0))
    for call, argument in (
        (lambda: fitted.quantile(0), "coverage"),
        (lambda: fit_calibration(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)), "activations"),
        (lambda: fit_calibration(torch.tensor([[math.nan, 1.0]]), torch.tensor([0])), "activations"),
        (lambda: calibration_curve(np.array([np.nan]), np.array([True])), "confidence"),
    ):
        with pytest.raises(ArgumentError) as error:
            call()
        assert error.value.argument == argument


@pytest.mark.parametrize(
    "change",
    [{"temperature": 0}, {"logits": ["log"]}, {"scores": [0.5, 0.1]}, {"scores": [math.nan]}, {"prior": [math.inf]}],
    ids=str,
)
def test_what_no_fit_gives_is_refused(change):
    with pytest.raises(CapsellaError):
        Calibration.from_dict(asdict(fit_calibration(*predictions(20, 1.0))) | change)


def test_expected_error_is_that_of_its_definition():
    """Naeini, Cooper, Hauskrecht 2015: over bins, the share of images times |accuracy − confidence|."""
    generator = np.random.default_rng(0)
    confidence, correct = generator.random(500), generator.random(500) < 0.7
    wanted = 0.0
    for bin_ in range(15):
        inside = [at for at in range(500) if bin_ / 15 < confidence[at] <= (bin_ + 1) / 15]
        gap = sum(correct[at] for at in inside) / len(inside) - sum(confidence[at] for at in inside) / len(inside)
        wanted += len(inside) / 500 * abs(gap)
    assert calibration_curve(confidence, correct).expected_error == pytest.approx(wanted, abs=1e-12)
