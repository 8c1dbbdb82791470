"""Normalisation of feature maps, of poses and of parents by type; padding."""

import copy

import pytest
import torch
from torch import Tensor

from capsella.layers import (
    CapsuleConv2d,
    DenseCapsules,
    NormalisePoses,
    PadCapsules,
)
from capsella.layers.norms import NormaliseCapsules
from capsella.routing import ROUTINGS, EMRouting, LogisticRouting, VariationalRouting
from capsella.types import CapsuleLogits, Capsules

LOGISTIC = sorted(name for name, routing in ROUTINGS.items() if issubclass(routing, LogisticRouting))
every_routing = pytest.mark.parametrize("name", LOGISTIC)


def children(batch: int = 5) -> Capsules:
    return Capsules(torch.randn(batch, 3, 4, 2, 4), torch.rand(batch, 3, 4, 2))


def layer(name: str = "variational") -> CapsuleConv2d:
    return CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=ROUTINGS[name](), norm="batch")


def standardised(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return (x - x.mean(axes, keepdim=True)) / (x.var(axes, correction=0, keepdim=True) + 1e-5).sqrt()


@every_routing
def test_a_training_batch_is_standardised_by_type(name: str) -> None:
    bare = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=ROUTINGS[name]())
    normalised = layer(name)
    normalised.load_state_dict(bare.state_dict(), strict=False)
    u = children()
    before, after = bare.route_logits(u), normalised(u)
    torch.testing.assert_close(after.poses, standardised(before.poses, (0, 1, 2, 4)), rtol=1e-4, atol=1e-5)
    odds = standardised(before.log_odds, (0, 1, 2))
    torch.testing.assert_close(after.activations, odds.sigmoid(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("competition", ["all", "types"])
@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_em_has_log_odds_where_activations_are_saturated(competition: str, backend: str) -> None:
    """β_a = 1000: every activation is 1 in float32, and log-odds tell the parents apart."""
    routing = EMRouting(inverse_temperature=1.0, competition=competition, backend=backend)  # type: ignore[arg-type]
    em = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=routing)
    torch.nn.init.constant_(em.routing_parameters["beta_a"], 1000.0)
    scored = em.route_logits(children(2))
    assert scored.log_odds.sigmoid().eq(1).all()
    assert scored.log_odds.std() > 0.1


def test_statistics_do_not_remember_where_they_started() -> None:
    """Of log-odds that vary by 0.001: after a single batch, as after many."""
    norm, x = NormaliseCapsules(3), 0.001 * torch.randn(50, 2, 1, 3)
    norm(CapsuleLogits(torch.randn(50, 2, 1, 3, 4), x))
    out = norm.eval()(CapsuleLogits(torch.randn(50, 2, 1, 3, 4), x))
    assert float(out.log_odds.std()) == pytest.approx(1 / (1 + 1e-5 / 1e-6) ** 0.5, rel=0.1)  # ε is ten variances


def test_one_image_of_one_class_capsule_can_be_trained_on() -> None:
    """It has no variance: the running statistics serve."""
    dense = DenseCapsules((3, 4), 2, 4, 3, 4, tied=True, pose="matrix", routing=VariationalRouting(), norm="batch")
    expected = copy.deepcopy(dense).eval()
    u = children(1)
    out = dense.train()(u)
    torch.testing.assert_close(out.activations, expected(u).activations)
    assert out.poses.isfinite().all()


@every_routing
@pytest.mark.parametrize(("activation", "scale"), [(0.0, 0.0), (1.0, 1e-6), (0.0, 1e6), (1.0, 1e6)])
def test_finite_gradients(name: str, activation: float, scale: float) -> None:
    normalised = layer(name)
    poses = (scale * torch.randn(2, 3, 4, 2, 4)).requires_grad_()
    out = normalised(Capsules(poses, torch.full((2, 3, 4, 2), activation)))
    (out.poses.square().sum() + out.activations.sum()).backward()
    gradients = [parameter.grad for parameter in normalised.parameters() if parameter.grad is not None]
    for tensor in (*out, poses.grad, *gradients):
        assert tensor is not None
        assert torch.isfinite(tensor).all()


def test_poses_are_normalised_element_by_element() -> None:
    capsules = Capsules(3 + 2 * torch.randn(4, 5, 6, 2, 3), torch.rand(4, 5, 6, 2))
    poses, activations = NormalisePoses(2, 3)(capsules)
    assert activations is capsules.activations
    expected = capsules.poses - capsules.poses.mean((0, 1, 2))
    expected = expected / (capsules.poses.var((0, 1, 2), correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(poses, expected)


def test_padding_is_nobody() -> None:
    capsules = Capsules(torch.randn(2, 3, 4, 2, 5), torch.rand(2, 3, 4, 2))
    poses, activations = PadCapsules(2)(capsules)
    assert poses.shape == (2, 7, 8, 2, 5)
    assert torch.equal(poses[:, 2:-2, 2:-2], capsules.poses)
    assert torch.equal(activations[:, 2:-2, 2:-2], capsules.activations)
    assert int((activations != 0).sum()) == capsules.activations.numel()
    assert int((poses != 0).sum()) == capsules.poses.numel()
