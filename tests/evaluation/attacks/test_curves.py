"""Accuracy under attack: of linear classifiers by hand, of one that masks its gradient, and of small networks."""

import io
import json
import re

import pytest
import torch
from rich.console import Console
from torch import nn

from capsella.data import ImageSet
from capsella.evaluation import AttackOptions, attack_networks, attack_notes, attack_table
from capsella.models.classifiers import ConvolutionalClassifier

# Two classes by the brightness of one pixel, which is 0.5, 0.3, 0.3 and 0.5 away from the middle.
GREY = ImageSet(
    torch.tensor([0, 51, 204, 255], dtype=torch.uint8).reshape(4, 1, 1, 1), torch.tensor([0, 0, 1, 1]), ("a", "b")
)


class Steps(nn.Module):
    """Rounds to whole numbers, and so has no gradient anywhere."""

    def forward(self, x):
        return (x * 20).round()


def threshold(*layers):
    """Class b where the pixel is brighter than 0.5."""
    linear = nn.Linear(1, 2)
    model = ConvolutionalClassifier(
        nn.Sequential(nn.Flatten(), *layers, linear), image_size=(1, 1), channels=1, classes=("a", "b")
    )
    scale = 20 if layers else 1
    linear.weight.data = torch.tensor([[0.0], [1.0 / scale]])
    linear.bias.data = torch.tensor([0.5, 0.0])
    return model


OPTIONS = AttackOptions(epsilons=(0.1, 0.35, 0.6), steps=4, restarts=2, batch_size=3)


def test_accuracy_by_hand():
    results = attack_networks({"one": threshold(), "two": threshold()}, GREY, OPTIONS)
    assert list(results) == ["one", "two"]
    for name, other in (("one", "two"), ("two", "one")):
        result = results[name]
        assert (result.clean, result.at_full_reach, result.is_masked) == (100, 0, False)
        assert [curve.label for curve in result.curves if curve.source is None] == ["FGSM", "BIM", "PGD"]
        assert [curve.label for curve in result.curves if curve.source] == [f"transfer from {other}"]
        assert all(curve.accuracy == (100, 50, 0) for curve in result.curves)
        assert (result.zero_gradient, result.without_gradient) == (0, 0)


def test_a_masked_gradient_is_found_out():
    """White-box attacks find nothing to climb; the images that fool its twin fool it as well."""
    masked = threshold(Steps())
    results = attack_networks({"masked": masked, "plain": threshold()}, GREY, OPTIONS)
    assert (results["masked"].zero_gradient, results["masked"].without_gradient) == (100, 4)
    accuracy = {curve.label: curve.accuracy for curve in results["masked"].curves}
    assert accuracy["FGSM"] == (100, 100, 100)
    assert accuracy["transfer from plain"] == (100, 50, 0)
    assert results["masked"].is_masked
    once = attack_networks({"masked": masked}, GREY, AttackOptions((0.1,), steps=1, restarts=1))
    assert once["masked"].is_masked
    assert "MASKED: the curves overstate this network" in attack_notes(once)[0]


def test_capsules_and_a_cnn(trained, digits):
    options = AttackOptions((0.1, 0.3), steps=4, restarts=1)
    models = {name: trained[name] for name in ("cnn", "dynamic")}
    results = attack_networks(models, digits.test, options)
    labels = {name: [curve.label for curve in result.curves] for name, result in results.items()}
    assert labels["cnn"] == ["FGSM", "BIM", "PGD", "transfer from dynamic"]
    assert labels["dynamic"] == ["FGSM", "BIM", "PGD", "vote", "transfer from cnn"]
    for result in results.values():
        assert not result.is_masked
        accuracy = {curve.attack: curve.accuracy for curve in result.curves}
        assert accuracy["PGD"][1] < accuracy["PGD"][0] <= result.clean
        assert accuracy["PGD"][1] <= accuracy["transfer"][1]
    again = attack_networks(models, digits.test, options)
    assert {name: result.to_dict() for name, result in again.items()} == {
        name: result.to_dict() for name, result in results.items()
    }
    json.dumps(again["cnn"].to_dict(), allow_nan=False)
    console = Console(file=io.StringIO(), width=120)
    console.print(attack_table(results, options))
    assert "ε = 0.3" in console.file.getvalue()
    assert f"{results['dynamic'].curves[0].accuracy[1]:.1f}" in console.file.getvalue()
    assert "dynamic: not masked. PGD at ε = 1 leaves 0.0 % right" in "\n".join(attack_notes(results))
    assert not any(model.training for model in models.values())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epsilons": ()}, "epsilons: must be at least one, rising within (0, 1], got ()"),
        ({"epsilons": (0.2, 0.1)}, "epsilons: must be at least one, rising within (0, 1], got (0.2, 0.1)"),
        ({"epsilons": (0.2, 1.1)}, "epsilons: must be at least one, rising within (0, 1], got (0.2, 1.1)"),
        ({"steps": 0}, "steps: must be at least 1, got 0"),
        ({"restarts": 0}, "restarts: must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size: must be at least 1, got 0"),
        ({"seed": -1}, "seed: must not be negative, got -1"),
    ],
)
def test_options_out_of_range(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        AttackOptions(**fields)


def test_errors():
    with pytest.raises(ValueError, match="models, images: must be at least one, got 0 and 4"):
        attack_networks({}, GREY)
    with pytest.raises(ValueError, match="models, images: must be at least one, got 1 and 0"):
        attack_networks({"one": threshold()}, GREY.subset([]))
    other = ImageSet(GREY.images, GREY.labels, ("b", "a"))
    with pytest.raises(ValueError, match=r"images.classes: must be one's \('a', 'b'\), got \('b', 'a'\)"):
        attack_networks({"one": threshold()}, other)


def test_a_network_that_answers_nan_is_refused():
    broken = threshold()
    for weight in broken.parameters():
        weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="activations: must be finite, got NaN or infinity for 3 of 3 images"):
        attack_networks({"broken": broken}, GREY, OPTIONS)
