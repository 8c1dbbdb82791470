import math

import pytest
import torch

from capsella.models import create_model
from capsella.report import routing_diagnostics
from capsella.routing import UniformRouting, coupling_entropy, dead_share, diagnose
from capsella.routing.recording import RoutingTrace


def test_entropy_by_hand():
    couplings = torch.tensor([[[0.5, 0.25, 0.25]]])
    expected = (0.5 * math.log(2) + 0.5 * math.log(4)) / math.log(3)
    assert coupling_entropy(couplings).item() == pytest.approx(expected)


def test_leaky_couplings_are_divided_by_their_sum():
    couplings = torch.tensor([[[0.5, 0.25, 0.25], [0.05, 0.025, 0.025], [0, 0, 0]]])
    full, leaky, nothing = coupling_entropy(couplings)[0].tolist()
    assert leaky == pytest.approx(full)
    assert nothing == 0


def test_dead_share_counts_types_that_never_wake():
    activations = torch.tensor([[0.0, 0.05, 0.9, 0.0], [0.2, 0.09, 0.0, 0.0]])
    assert dead_share(activations) == 0.5
    assert dead_share(activations, threshold=0.5) == 0.75


@pytest.mark.parametrize(("routing", "dead"), [("self", 1 / 32), ("dynamic", 1)])
def test_shares_of_many_types_are_dead_far_below_an_even_one(routing, dead):
    shares = torch.tensor([[0.0, *[1 / 31] * 31]])
    trace = RoutingTrace(routing, [torch.full((1, 4, 32), 1 / 32)], [], [shares])
    (layer,) = diagnose([[trace]])
    assert layer.dead_share == dead


def test_couplings_start_even_and_sharpen(capsnet, image_set):
    (layer,) = routing_diagnostics(capsnet, image_set.images.float() / 255)
    assert layer.name == "routing layer 1 (dynamic)"
    assert layer.parents == 3
    assert len(layer.entropy) == 3
    assert layer.entropy[0] == pytest.approx(1)
    assert layer.entropy[2] < layer.entropy[1] < 1


def test_batch_size_changes_nothing(capsnet, image_set):
    images = image_set.images.float() / 255
    (whole,), (parts,) = routing_diagnostics(capsnet, images, 12), routing_diagnostics(capsnet, images, 5)
    assert parts.entropy == pytest.approx(whole.entropy)
    assert parts.dead_share == whole.dead_share


def test_uniform_routing_is_called_so_and_stays_even(image_set):
    model = create_model("sabour2017_capsnet", image_size=17, classes=3, routing=UniformRouting())
    (layer,) = routing_diagnostics(model, image_set.images.float() / 255)
    assert layer.name == "routing layer 1 (uniform)"
    assert layer.entropy == pytest.approx((1,))


def test_a_cnn_routes_nothing(cnn, image_set):
    assert routing_diagnostics(cnn, image_set.images.float() / 255) == []


def test_what_is_no_number_is_not_called_well_routed():
    couplings = torch.rand(1, 3, 4)
    couplings[0, 1, 2] = torch.nan
    assert coupling_entropy(couplings).isnan().tolist() == [[False, True, False]]
    assert math.isnan(dead_share(torch.tensor([[0.5, torch.nan], [0.5, 0.1]])))
