"""Extremes that kernels once got wrong: children that are not active at all, distant votes, second derivatives, NaN."""

import pytest
import torch

from capsella.layers import CapsuleConv2d
from capsella.models import create_model
from capsella.routing import ROUTINGS, variational_routing
from capsella.types import Capsules
from tests.routing.helpers import needs_kernels

pytestmark = needs_kernels
FUSED = ["em", "heinsen", "variational"]


def both(name, poses, activations, types=17):
    """Poses and activations by eager PyTorch in float64 and by the kernels."""
    results = []
    for backend, dtype in (("eager", torch.float64), ("native", torch.float32)):
        torch.manual_seed(0)
        layer = CapsuleConv2d(8, 2, types, 2, 1, routing=ROUTINGS[name](backend=backend))
        conv = layer.routing_inputs(Capsules(poses, activations))
        tensors = {key: getattr(conv, key).to(dtype) for key in ("poses", "activations", "weight")}
        parameters = {key: value.to(dtype) for key, value in layer.routing_parameters.items()}
        results.append(layer.routing.route_windows(type(conv)(**tensors, geometry=conv.geometry), **parameters))
    return results


@pytest.mark.parametrize("name", FUSED)
def test_children_that_are_not_active_give_no_data(name):
    """Each counted as if it were active by 1e-12, by which the spread of votes of a million is multiplied."""
    poses = 1e6 * torch.randn(2, 2, 2, 8, 2, generator=torch.Generator().manual_seed(1))
    exact, ours = both(name, poses, torch.zeros(2, 2, 2, 8))
    torch.testing.assert_close(ours.activations.double(), exact.activations, rtol=1e-4, atol=1e-6)
    if name != "em":  # whose means are of votes, however little they count
        assert not ours.poses.any()


def test_votes_so_far_from_all_parents_that_padding_seemed_near():
    """The logarithm of a coupling to a lane without a parent was −1e30, and those of real parents are smaller here."""
    poses = 1e15 * torch.randn(1, 1, 3, 8, 2, generator=torch.Generator().manual_seed(1))
    poses[0, 0, 0, 0] *= 1e3
    exact, ours = both("variational", poses, torch.full((1, 1, 3, 8), 1e-30))
    torch.testing.assert_close(ours.activations.double(), exact.activations, rtol=1e-4, atol=1e-6)


def test_proportions_are_not_lost_beside_the_densities_of_far_votes():
    """Without them a child that is all one parent's has R = 1/π; ln π was added to ln p, of millions, and was gone."""
    votes = 1e6 * torch.randn(1, 1, 33, 16, generator=torch.Generator().manual_seed(1))
    routed = variational_routing(votes, torch.zeros(1, 1), proportions=False, backend="eager")
    one = torch.ones((), dtype=torch.float64)  # no child is active: π = exp(ψ(1) − ψ(33)) of each of 33 parents
    assert routed.couplings.max().item() == pytest.approx((torch.digamma(33 * one) - torch.digamma(one)).exp().item())


@pytest.mark.parametrize("name", ["dynamic", *FUSED])
def test_second_derivatives_are_refused_and_not_taken_for_zero(name):
    layer = CapsuleConv2d(2, 4, 3, 4, 2, routing=ROUTINGS[name](backend="native"))
    poses = torch.randn(1, 3, 3, 2, 4, requires_grad=True)
    out = layer(Capsules(poses, torch.rand(1, 3, 3, 2)))
    (slope,) = torch.autograd.grad(out.poses.square().sum(), poses, create_graph=True)
    with pytest.raises(NotImplementedError, match=f"{name} routing"):
        slope.square().sum().backward()


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", ["em", "variational"])
def test_a_child_that_is_not_active_has_the_gradient_of_its_share(name, backend):
    """It was 0, as of a clamped number: a mask, or an occlusion, asks what would be if the child were there."""
    torch.manual_seed(0)
    poses, weights = torch.randn(1, 1, 1, 6, 4), torch.randn(2, 3)
    activations = torch.tensor([0, 0.5, 1, 0, 0.3, 0.7]).view(1, 1, 1, 6)
    slopes = []
    for chosen in ("reference", backend):
        torch.manual_seed(1)
        layer = CapsuleConv2d(6, 4, 3, 4, 1, routing=ROUTINGS[name](backend=chosen))
        asked = activations.clone().requires_grad_()
        out = layer(Capsules(poses, asked))
        (slope,) = torch.autograd.grad(
            (out.activations * weights[0]).sum() + (out.poses[..., 0] * weights[1]).sum(), asked
        )
        slopes.append(slope)
    assert slopes[0][0, 0, 0, [0, 3]].abs().min() > 1e-3
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", FUSED)
def test_where_no_child_is_active_shares_are_constants(name, backend):
    layer = CapsuleConv2d(6, 4, 3, 4, 1, routing=ROUTINGS[name](backend=backend))
    activations = torch.zeros(1, 1, 1, 6, requires_grad=True)
    out = layer(Capsules(torch.randn(1, 1, 1, 6, 4), activations))
    (slope,) = torch.autograd.grad(out.activations.sum() + out.poses.sum(), activations)
    assert slope.abs().max() < 1e6


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", FUSED)
def test_what_is_not_a_number_is_not_hidden(name, value):
    """Of an activation: a network whose weights are broken must not give classes, as `capsella predict` relies on."""
    activations = torch.rand(1, 2, 2, 8)
    activations[0, 0, 1, 3] = value
    poses = torch.randn(1, 2, 2, 8, 2)
    for routed in both(name, poses, activations):
        assert not routed.activations[0, 0, 1].isfinite().any()
        assert routed.activations[0, 1].isfinite().all()  # where that child is in no window


def test_a_broken_weight_in_the_middle_of_a_network_is_not_hidden():
    model = create_model("hinton2018_matrix_capsnet_small", image_size=17, classes=3).eval()
    model.capsule_layers[0].routing_parameters["beta_a"].data[0] = torch.nan
    with torch.no_grad():
        assert model(torch.rand(1, 1, 17, 17)).activations.isnan().all()
