"""Attacks against closed forms and small trained networks; curves of accuracy; the attack that evades the detector."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from capsella.data import ImageSet, batches
from capsella.evaluation import AttackOptions, attack_networks
from capsella.evaluation.attacks import (
    adaptive_attack,
    bim,
    fgsm,
    log_odds,
    margin,
    margin_gradient,
    pgd,
    vote_log_odds,
)
from capsella.layers import DenseCapsules
from capsella.models import CapsuleClassifier, create_model
from capsella.models.classifiers import ConvolutionalClassifier
from capsella.models.inference import predict_with_scores
from capsella.report.terminal import attack_table
from capsella.routing import RandomRouting, squash
from capsella.types import Capsules, Output
from capsella.uncertainty import fit_ood_detector

vote_attack = partial(pgd, score=vote_log_odds)
ATTACKS = {"fgsm": fgsm, "bim": bim, "pgd": pgd, "vote": vote_attack}
CAPSULES = ["dynamic", "em"]
EVERY = [("fgsm", "dynamic"), ("bim", "em"), ("pgd", "cnn"), ("vote", "dynamic"), ("vote", "em")]


@pytest.fixture
def linear() -> ConvolutionalClassifier:
    """Logits z = W x of 2×2 images and three classes, with small weights."""
    model = ConvolutionalClassifier(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), image_size=(2, 2), channels=1, classes=("a", "b", "c")
    )
    model.network[1].weight.data = torch.tensor([[2.0, -1, 0.5, 0], [0, 1, -1, 0.25], [-9, -9, -9, -9]])
    return model


@pytest.fixture
def test_images(digits):
    return digits.test.images.float() / 255, digits.test.labels


def accuracy(model, images, labels):
    with torch.no_grad():
        return float((model(images).activations.argmax(1) == labels).float().mean())


IMAGES = torch.full((1, 1, 2, 2), 0.5)
LABELS = torch.tensor([0])
# The second class is the nearest, and z_b − z_a falls with the first and third pixel, rises with the others.
UPHILL = torch.tensor([-1.0, 1, -1, 1]).reshape(1, 1, 2, 2)


@pytest.mark.parametrize("attack", [fgsm, bim, pgd])
def test_a_linear_classifier_falls_where_its_margin_is_used_up(linear, attack):
    """At ε = (z_a − z_b)/‖w_a − w_b‖₁ = (0.75 − 0.125)/5.75, along the signs of the weights."""
    torch.testing.assert_close(attack(linear, IMAGES, LABELS, 0.1), IMAGES + 0.1 * UPHILL)
    dark = attack(linear, torch.full((1, 1, 2, 2), 0.05), LABELS, 0.1)
    torch.testing.assert_close(dark.flatten(), torch.tensor([0, 0.15, 0, 0.15]))
    threshold = 0.625 / 5.75
    for epsilon, right in ((threshold - 1e-3, 1.0), (threshold + 1e-3, 0.0)):
        assert accuracy(linear, attack(linear, IMAGES, LABELS, epsilon), LABELS) == right


def test_log_odds_undo_both_activation_functions():
    s = torch.randn(2, 3, 8) * torch.tensor([0.1, 1, 30]).reshape(1, 3, 1)
    lengths = Output(squash(s).norm(dim=2))
    torch.testing.assert_close(log_odds(lengths), s.square().sum(2).log(), rtol=1e-3, atol=1e-3)
    logits = torch.tensor([[-8.0, 0, 9]])
    torch.testing.assert_close(log_odds(Output(logits.sigmoid())), logits, rtol=1e-3, atol=1e-3)
    assert log_odds(Output(torch.tensor([[0.0, 1]]))).isfinite().all()
    assert log_odds(Output(torch.rand(1, 3), logits=logits)) is logits


@pytest.mark.parametrize(("attack", "network"), EVERY)
def test_ball_and_range_are_kept_and_the_model_left_alone(attack, network, trained, test_images):
    model, (images, labels) = trained[network], test_images
    model.train()
    frozen = next(model.parameters()).requires_grad_(False)
    epsilon = 0.07
    attacked = ATTACKS[attack](model, images, labels, epsilon)
    change = (attacked - images).abs()
    assert epsilon * 0.999 < change.max() <= epsilon + 1e-6
    assert attacked.min() >= 0
    assert attacked.max() <= 1
    assert not attacked.requires_grad
    assert model.training
    assert [parameter.requires_grad for parameter in model.parameters()].count(False) == 1
    frozen.requires_grad_(True)
    model.eval()


@pytest.mark.parametrize("network", ["cnn", *CAPSULES])
def test_no_gradient_is_masked(network, trained, test_images):
    """With every image within reach, none stays right; and on the way there accuracy falls."""
    model, (images, labels) = trained[network], test_images
    clean = accuracy(model, images, labels)
    assert clean > 0.8
    assert margin_gradient(model, images, labels).abs().amax((1, 2, 3)).min() > 0
    some = accuracy(model, pgd(model, images, labels, 0.15), labels)
    assert 0 <= some < clean - 0.2
    assert accuracy(model, pgd(model, images, labels, 1.0), labels) == 0
    if network != "cnn":
        assert accuracy(model, vote_attack(model, images, labels, 1.0), labels) == 0


def test_the_worst_restart_is_kept(trained, test_images):
    """Of the same starts, more can only raise the margin."""
    model, (images, labels) = trained["dynamic"], test_images
    margins = []
    for restarts in (1, 3):
        attacked = pgd(
            model, images, labels, 0.1, steps=2, restarts=restarts, generator=torch.Generator().manual_seed(0)
        )
        with torch.no_grad():
            margins.append(margin(log_odds(model(attacked)), labels))
    assert (margins[1] >= margins[0] - 1e-5).all()
    assert (margins[1] > margins[0] + 1e-4).any()


def test_a_saturated_capsule_is_attacked_all_the_same():
    """A length near 1 has next to no slope; its log-odds have."""
    model = create_model("sabour2017_capsnet", image_size=17, classes=3, reconstruction=False).eval()
    model.capsule_layers[-1].weight.data *= 3e3
    images = torch.rand(2, 1, 17, 17)
    labels = model(images).activations.argmax(1)
    assert model(images).activations.max() > 0.9999
    x = images.clone().requires_grad_()
    model(x).activations.sum().backward()
    assert x.grad.abs().max() < 1e-5
    assert margin_gradient(model, images, labels).abs().amax((1, 2, 3)).min() > 1e-3


class ClassLayerOnly(CapsuleClassifier):
    """Children that are the image's pixels: four of two elements each."""

    def __init__(self, layer):
        super().__init__(
            nn.Identity(),
            PixelCapsules(),
            nn.Sequential(layer),
            None,
            image_size=(2, 4),
            channels=1,
            classes=("a", "b", "c"),
        )


class PixelCapsules(nn.Module):
    def forward(self, images):
        poses = images.reshape(-1, 1, 1, 4, 2)
        return Capsules(poses, images.reshape(-1, 1, 1, 4, 2).mean(4))


def test_votes_of_dynamic_routing_by_hand():
    layer = DenseCapsules((1, 1), 4, 2, 3, 5)
    images = torch.rand(2, 1, 2, 4)
    W = layer.weight[0, 0]  # [i j p d]
    mean = torch.einsum("bip,ijpd->bijd", images.reshape(2, 4, 2), W).mean(1)
    length = squash(mean).norm(dim=2)
    with torch.no_grad():
        odds = vote_log_odds(ClassLayerOnly(layer), images)
        torch.testing.assert_close(odds, log_odds(Output(length)), rtol=1e-3, atol=1e-3)
        layer.routing = RandomRouting()  # whatever routes, votes are votes
        torch.testing.assert_close(vote_log_odds(ClassLayerOnly(layer), images), odds)


@pytest.mark.parametrize("routing", ["em", "variational"])
def test_votes_of_normalised_layers_are_those_of_one_pass(routing):
    """The class capsules, once with even couplings, and normalised as the network does it."""
    options = {"image_size": 16, "classes": 3, "parameters": 100_000}
    model = create_model("benchmark_capsnet", **options, routing={"name": routing}).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        model(torch.rand(8, 1, 16, 16))  # statistics to normalise by
        model.eval()
        images = torch.rand(4, 1, 16, 16)
        odds = vote_log_odds(model, images)
        assert not odds.allclose(model(images).logits, rtol=0.01, atol=1e-4)
        model.capsule_layers[-1].routing = replace(model.capsule_layers[-1].routing, iterations=1)
        torch.testing.assert_close(odds, model(images).logits, rtol=1e-3, atol=1e-3)


# Curves. Two classes by the brightness of one pixel, which is 0.5, 0.3, 0.3 and 0.5 away from the middle.

GREY = ImageSet(
    torch.tensor([0, 51, 204, 255], dtype=torch.uint8).reshape(4, 1, 1, 1), torch.tensor([0, 0, 1, 1]), ("a", "b")
)
OPTIONS = AttackOptions(epsilons=(0.1, 0.35, 0.6), steps=4, restarts=2, batch_size=3)


class Steps(nn.Module):
    """Rounds to whole numbers, and so has no gradient anywhere."""

    def forward(self, x):
        return (x * 20).round()


def threshold(*layers):
    """Class b if the pixel is brighter than 0.5."""
    linear = nn.Linear(1, 2)
    network = nn.Sequential(nn.Flatten(), *layers, linear)
    model = ConvolutionalClassifier(network, image_size=(1, 1), channels=1, classes=("a", "b"))
    linear.weight.data = torch.tensor([[0.0], [1.0 / (20 if layers else 1)]])
    linear.bias.data = torch.tensor([0.5, 0.0])
    return model


def test_accuracy_by_hand():
    results = attack_networks({"one": threshold(), "two": threshold()}, GREY, OPTIONS)
    for name, other in (("one", "two"), ("two", "one")):
        result = results[name]
        assert (result.clean, result.at_full_reach, result.is_masked) == (100, 0, False)
        assert [curve.label for curve in result.curves] == ["FGSM", "BIM", "PGD", f"transfer from {other}"]
        assert all(curve.accuracy == (100, 50, 0) for curve in result.curves)
        assert (result.zero_gradient, result.without_gradient) == (0, 0)


def test_a_masked_gradient_is_found_out():
    """White-box attacks have nothing to climb; the images that fool its twin fool it as well."""
    masked = threshold(Steps())
    result = attack_networks({"masked": masked, "plain": threshold()}, GREY, OPTIONS)["masked"]
    assert (result.zero_gradient, result.without_gradient, result.is_masked) == (100, 4, True)
    accuracy = {curve.label: curve.accuracy for curve in result.curves}
    assert (accuracy["FGSM"], accuracy["transfer from plain"]) == ((100, 100, 100), (100, 50, 0))


# The attack that knows the OOD detector

EPSILON, RATE = 0.3, 0.1


@pytest.fixture(scope="module")
def with_detector(trained, digits):
    """The dynamic network with a detector; images and labels that it classifies correctly."""
    model = trained["dynamic"]
    fit_ood_detector(model, digits.train, digits.validation)
    images, labels, _ = next(batches(digits.test, 30))
    with torch.no_grad():
        right = model(images).activations.argmax(1) == labels
    yield model, images[right], labels[right]
    model.ood_detector = None


def test_an_adaptive_attack_is_flagged_less_often_than_pgd(with_detector):
    model, images, labels = with_detector
    generator, detector = torch.Generator().manual_seed(0), model.ood_detector
    options = {"restarts": 1, "generator": generator}
    plain = pgd(model, images, labels, EPSILON, steps=10, **options)
    there = [parameter.requires_grad for parameter in model.parameters()]
    adaptive = adaptive_attack(model, images, labels, EPSILON, false_positive_rate=RATE, steps=20, **options)
    assert [parameter.requires_grad for parameter in model.parameters()] == there
    assert float((adaptive - images).abs().max()) <= EPSILON + 1e-6
    assert (adaptive >= 0).all()
    assert (adaptive <= 1).all()
    with torch.no_grad():
        (output, scores), (other, lower) = (predict_with_scores(model, x, detector) for x in (plain, adaptive))
    fooled, fooled_too = (out.activations.argmax(1) != labels for out in (output, other))
    assert fooled.float().mean() > 0.8
    assert (scores.amax(1) > detector.threshold(RATE))[fooled].float().mean() > 0.8
    assert fooled_too.sum() >= fooled.sum() - 2
    assert (lower.amax(1) < scores.amax(1))[fooled & fooled_too].float().mean() > 0.8


def test_curves_count_flagged_images(with_detector, trained, digits):
    model, options = with_detector[0], AttackOptions((0.05, EPSILON), steps=2, restarts=1)
    models = {"with": model, "without": trained["cnn"]}
    results, again = (attack_networks(models, digits.test, options, false_positive_rate=RATE) for _ in range(2))
    fitted, plain = results["with"], results["without"]
    assert [curve.attack for curve in fitted.curves] == ["FGSM", "BIM", "PGD", "vote", "adaptive", "transfer"]
    assert 0 <= fitted.false_positives <= 40
    for curve in fitted.curves:
        assert all(0 <= flagged <= fooled <= 30 for flagged, fooled in zip(curve.flagged, curve.fooled, strict=True))
    assert "adaptive" not in [curve.attack for curve in plain.curves]
    assert plain.false_positives is None
    assert all(curve.flagged == () for curve in plain.curves)
    assert fitted.to_dict()["attacks"][0]["fooled_and_flagged"] == list(fitted.curves[0].flagged)
    assert json.loads(json.dumps(fitted.to_dict(), allow_nan=False)) == again["with"].to_dict()
    assert attack_table(results, options).renderables
