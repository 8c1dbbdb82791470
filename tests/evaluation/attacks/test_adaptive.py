"""The attack that knows of the scores: it fools as PGD does, and is found out less often."""

import pytest
import torch

from capsella.data import batches
from capsella.evaluation import AttackOptions, attack_networks, attack_notes
from capsella.evaluation.attacks.adaptive import adaptive_attack
from capsella.evaluation.attacks.methods import pgd
from capsella.models.novelty.observe import answer
from capsella.training import familiarise_model

EPSILON, REFUSE = 0.3, 0.1


@pytest.fixture(scope="module")
def attacked(trained, digits):
    """The dynamic network, fitted; images and labels that it has right."""
    model = trained["dynamic"]
    familiarise_model(model, digits.train, digits.validation)
    images, labels, _ = next(batches(digits.test, 30))
    with torch.no_grad():
        right = model(images).activations.argmax(1) == labels
    yield model, images[right], labels[right]
    model.novelty = None


def judge(model, images, labels):
    with torch.no_grad():
        output, surprises = answer(model, images, model.novelty)
    return output.activations.argmax(1) != labels, surprises.amax(1) > model.novelty.threshold(REFUSE)


def test_it_is_found_out_less_often_than_pgd(attacked):
    model, images, labels = attacked
    generator = torch.Generator().manual_seed(0)
    plain = pgd(model, images, labels, EPSILON, steps=10, restarts=1, generator=generator)
    there = [parameter.requires_grad for parameter in model.parameters()]
    knowing = adaptive_attack(
        model, model.novelty, images, labels, EPSILON, refuse=REFUSE, steps=20, restarts=1, generator=generator
    )
    assert [parameter.requires_grad for parameter in model.parameters()] == there
    assert float((knowing - images).abs().max()) <= EPSILON + 1e-6
    assert float(knowing.min()) >= 0
    assert float(knowing.max()) <= 1
    fooled, strange = judge(model, plain, labels)
    assert fooled.float().mean() > 0.8
    assert strange[fooled].float().mean() > 0.8
    fooled_knowing, _ = judge(model, knowing, labels)
    assert fooled_knowing.sum() >= fooled.sum() - 2
    with torch.no_grad():
        plain_surprise = answer(model, plain, model.novelty)[1].amax(1)
        knowing_surprise = answer(model, knowing, model.novelty)[1].amax(1)
    assert (knowing_surprise < plain_surprise)[fooled & fooled_knowing].float().mean() > 0.8


def test_curves_count_who_is_found_out(attacked, trained, digits):
    model = attacked[0]
    options = AttackOptions((0.05, EPSILON), steps=2, restarts=1)
    results = attack_networks({"fitted": model, "plain": trained["cnn"]}, digits.test, options, refuse=REFUSE)
    fitted, plain = results["fitted"], results["plain"]
    assert [curve.attack for curve in fitted.curves] == ["FGSM", "BIM", "PGD", "vote", "adaptive", "transfer"]
    assert "adaptive" not in [curve.attack for curve in plain.curves]
    assert plain.false_alarms is None
    assert 0 <= fitted.false_alarms <= 40
    for curve in fitted.curves:
        assert all(0 <= flagged <= fooled <= 30 for flagged, fooled in zip(curve.flagged, curve.fooled, strict=True))
    for curve in plain.curves:
        assert curve.flagged == ()
    assert "plain: which images it does not know is not counted" in " ".join(attack_notes(results))
    rows = fitted.to_dict()["attacks"]
    assert rows[0]["fooled_and_not_known"] == list(fitted.curves[0].flagged)
    without = attack_networks({"fitted": model}, digits.test, options)["fitted"]
    assert "adaptive" not in [curve.attack for curve in without.curves]
    assert "fooled_and_not_known" not in without.to_dict()["attacks"][0]
