"""The page knows what the run knows: calibrated probabilities, and images that are out of distribution."""

import json

import pytest
import torch

from capsella.data import ImageSet
from capsella.uncertainty import calibrate_model, fit_ood_detector
from capsella.uncertainty.calibration import Calibration
from capsella.uncertainty.ood import fit_gaussian, low_level_features, normalize_score
from capsella.web.images import certainty, encode
from capsella.web.served_run import explorer_page

from .conftest import NAMES, in_node, model, needs_node, subject


@pytest.fixture(scope="module")
def calibrated():
    made = model()
    grey = torch.randint(100, 140, (120, 1, *made.image_size), dtype=torch.uint8)
    images = ImageSet(grey, torch.arange(120) % 3, NAMES)
    calibrate_model(made, images)
    fit_ood_detector(made, images, images)
    return subject(made, images)


def test_the_page_has_probabilities_reasons_and_the_warnings_of_the_report(calibrated):
    strange = torch.randint(0, 256, (2, *calibrated.test.images.shape[1:]), dtype=torch.uint8)
    seen = encode(calibrated.model, strange, torch.zeros(2, 0, dtype=torch.long), (-1, -1), 120)
    known = certainty(calibrated.model, seen)
    probabilities = calibrated.model.calibration.probabilities(seen.activations).amax(1)
    assert [one["probability"] for one in known] == pytest.approx(probabilities.tolist(), abs=1e-4)
    assert all(one["unlike"] for one in known)
    usual = certainty(calibrated.model, calibrated.seen)
    assert sum(not one["unlike"] for one in usual) > len(usual) / 2
    facts = json.loads(explorer_page([calibrated])[0].partition('id="facts">')[2].partition("</script>")[0])
    (run,) = facts["runs"]
    assert run["right"] == [int(calibrated.seen.correct.sum()), len(calibrated.seen.labels)]
    assert any("better than" in warning or "never found" in warning for warning in run["warnings"])


@needs_node
def test_the_page_computes_what_python_does():
    torch.manual_seed(0)
    activations, prior = torch.rand(3), (0.1, -0.2, 0.0)
    calibration = Calibration("logit", 0.7, (0.1,), prior=prior)
    scores, image = torch.rand(40).sort().values, torch.rand(1, 3, 6, 5)
    features, labels = torch.rand(30, 4), torch.arange(30) % 3
    gaussian = fit_gaussian(features, labels, 3)
    tries = torch.tensor([0.05, 0.5, float(scores[-2]), 2.0])
    given = {
        "activations": activations.tolist(),
        "facts": {"logits": "logit", "temperature": 0.7, "prior": prior},
        "scores": scores.tolist(),
        "tries": tries.tolist(),
        "image": image.flatten().tolist(),
        "features": features[0].tolist(),
        "mean": gaussian.means[1].tolist(),
        "whitening": gaussian.whitening.flatten().tolist(),
    }
    script = """import { distance, lowLevel, normalized, probabilityOf } from "./certainty.js";
      console.log(JSON.stringify([
        given.activations.map((_, k) => probabilityOf(given.activations, k, given.facts)),
        given.tries.map((score) => normalized(score, given.scores)),
        lowLevel(given.image, [3, 6, 5]),
        [distance(given.features, given.mean, given.whitening)],
      ]));"""
    expected = (
        calibration.probabilities(activations),
        normalize_score(tries, scores),
        low_level_features(image)[0],
        gaussian.distance(features[:1], torch.tensor([1])),
    )
    for got, wanted in zip(in_node(script, given), expected, strict=True):
        assert got == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-5)
