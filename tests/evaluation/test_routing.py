"""How a network routes over a test set: starved capsules, static couplings, parse trees."""

import json
from math import isnan

import pytest
import torch

from capsella.data import load_data
from capsella.evaluation import measure_routing
from capsella.evaluation.routing import _Layer
from capsella.losses import LossOptions
from capsella.routing import DynamicRouting, RoutingTrace, UniformRouting
from tests.papers.tiny import CAPSNET

LABELS = torch.tensor([0, 0, 1, 1])


def layer_of(couplings):
    """One position; couplings [images, children, parents]."""
    layer = _Layer("a layer", 2)
    trace = RoutingTrace("dynamic")
    trace.couplings.append(torch.as_tensor(couplings))
    winners = layer.add(trace, LABELS)
    return winners, layer.measured()


def test_couplings_that_follow_the_class():
    winners, found = layer_of([[[0.9, 0.1, 0.0]], [[0.9, 0.1, 0.0]], [[0.1, 0.9, 0.0]], [[0.1, 0.9, 0.0]]])
    assert winners.flatten().tolist() == [0, 0, 1, 1]
    assert found.starved_share == pytest.approx(1 / 3)
    assert found.class_share == pytest.approx(1)
    assert found.expected_class_share == pytest.approx(1 / 3)
    between = 2 * 0.4**2  # of two couplings; they differ among parents by their means 0.5, 0.5, 0
    static = 2 * (0.5 - 1 / 3) ** 2 + (1 / 3) ** 2
    assert found.image_share == pytest.approx(between / (between + static))


def test_static_couplings_and_uniform_ones():
    _, static = layer_of([[[0.9, 0.1]]] * 4)
    assert (static.image_share, static.starved_share) == (pytest.approx(0), 0.5)
    assert isnan(static.class_share)
    _, uniform = layer_of([[[0.5, 0.5]]] * 4)
    assert uniform.starved_share == 1
    assert isnan(uniform.image_share)


def test_a_network_on_images():
    images = load_data(CAPSNET.data).test
    for routing, trees in ((UniformRouting(), 1), (DynamicRouting(iterations=2), None)):
        torch.manual_seed(0)
        model = CAPSNET.with_model(routing=routing).model.create(images.image_size, images.channels, images.classes)
        report = measure_routing(model, images, LossOptions(), batch_size=7)
        assert json.loads(json.dumps(report.to_dict()))["images"] == len(images) == 20
        assert {number for _, number in report.parse_trees.values()} == {2}
        if trees is not None:
            assert {distinct for distinct, _ in report.parse_trees.values()} == {trees}
        assert min(report.gradient_norms.values()) > 0
        assert any(name.startswith("capsule_layers") for name in report.gradient_norms)
