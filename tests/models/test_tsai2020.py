"""The network of inverted attention: every layer's parameters as in the authors' code, and their routing."""

import math

import numpy as np
import pytest
import torch

from capsella.layers import AttentionStack
from capsella.models import count_parameters, create_model
from capsella.report.routing_views import receptive_fields, routed_layers
from capsella.routing import DynamicRouting, InvertedAttentionRouting, diagnose, record


def block(below: int, width: int) -> list[int]:
    beside = [below * width, 2 * width] if below != width else []
    return [9 * below * width, 2 * width, 9 * width * width, 2 * width, *beside]


def test_parameters() -> None:
    with torch.device("meta"):
        model = create_model("tsai2020_resnet")
    own = [sum(p.numel() for p in layer.parameters(recurse=False)) for layer in model.modules()]
    blocks = [(64, 64)] * 3 + [(64, 128)] + [(128, 128)] * 3
    assert [count for count in own if count] == [
        9 * 3 * 64,
        2 * 64,
        *(count for sizes in blocks for count in block(*sizes)),
        128 * 32 * 16,  # primary capsules, and their layer normalisation
        2 * 16,
        *(3 * 3 * 32 * 32 * 4 * 4, 2 * 16) * 2,
        *(5 * 5 * 32 * 10 * 4 * 4, 2 * 16),
        16 + 1,  # the linear unit that all classes share
    ]
    assert count_parameters(model) == 1_828_817


def test_first_weights() -> None:
    layers = create_model("tsai2020_resnet").capsule_layers
    for layer, parents, children in zip(layers, (32, 32, 10), (9 * 32, 9 * 32, 25 * 32), strict=True):
        expected = math.sqrt(parents / (4 * children))
        assert float(layer.weight.detach().std()) == pytest.approx(expected, rel=0.02)
        assert abs(float(layer.weight.detach().mean())) < 0.02 * expected  # not around the identity


def test_concurrent_or_not() -> None:
    images = torch.rand(2, 3, 13, 14)
    model = create_model("tsai2020_resnet", image_size=(13, 14), types=4).eval()
    other = create_model("tsai2020_resnet", image_size=(13, 14), types=4, concurrent=False).eval()
    other.load_state_dict(model.state_dict())
    assert not torch.allclose(model(images).activations, other(images).activations, atol=1e-4)
    once = InvertedAttentionRouting(iterations=1)
    for network in (model, other):
        for layer in network.capsule_layers:
            layer.routing = once
        network.capsule_layers.rounds = 1
    torch.testing.assert_close(model(images).activations, other(images).activations)


def test_scores_are_a_linear_unit_on_the_class_poses() -> None:
    model = create_model("tsai2020_resnet", image_size=13, types=4).eval()
    output = model(torch.rand(2, 3, 13, 13))
    unit = model.scores.linear
    expected = output.capsules.poses[:, 0, 0] @ unit.weight[0] + unit.bias
    torch.testing.assert_close(output.logits, expected)
    torch.testing.assert_close(output.activations, expected.softmax(1))


def test_another_routing() -> None:
    model = create_model("tsai2020_resnet", image_size=13, types=4, routing=DynamicRouting())
    assert not isinstance(model.capsule_layers, AttentionStack)
    assert model(torch.rand(2, 3, 13, 13)).activations.sum(1).allclose(torch.ones(2))


@pytest.mark.parametrize("name", ["sabour2017_capsnet", "hahn2019_resnet20"])
def test_networks_that_read_activations_refuse_it(name: str) -> None:
    with pytest.raises(ValueError, match="routing: must be one with activations, got 'inverted_attention', whose par"):
        create_model(name, routing=InvertedAttentionRouting())


@pytest.mark.parametrize("concurrent", [True, False])
def test_what_the_explorer_sees(concurrent: bool) -> None:
    model = create_model("tsai2020_resnet", image_size=17, types=4, concurrent=concurrent).eval()
    image = torch.rand(3, 17, 17)
    layers = routed_layers(model, image)
    assert [layer.evidence.shape for layer in layers] == [(2, 9, 9, 4, 4), (2, 4, 4, 4, 4), (2, 2, 2, 4, 10)]
    assert layers[0].entropy[0] == pytest.approx(1.0, abs=1e-5)  # the first round is even
    assert layers[0].entropy[1] < 0.9999
    with record() as traces, torch.no_grad():
        model(image[None])
    for layer, expected in zip(layers, diagnose([traces]), strict=True):
        np.testing.assert_allclose(layer.entropy, expected.entropy, rtol=1e-6)
    # Beside the shortcuts, whose strides do not count again.
    assert [float(fields.step[0]) for fields in receptive_fields(model)] == [2, 4, 4]
