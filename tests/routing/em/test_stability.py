"""Finite, forward and backward, where a plain port of the formulas is not; and unguarded results on ordinary input."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from capsella.layers import CapsuleConv2d
from capsella.routing import EMRouting, em_routing
from capsella.types import Capsules

CASES: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "no child active": lambda: (torch.randn(2, 6, 3, 16), torch.zeros(2, 6)),
    "all children active": lambda: (torch.randn(2, 6, 3, 16), torch.ones(2, 6)),
    "no child active, huge votes": lambda: (1e6 * torch.randn(2, 6, 3, 16), torch.zeros(2, 6)),
    "hardly active": lambda: (torch.randn(2, 6, 3, 16), torch.full((2, 6), 1e-30)),
    "identical votes": lambda: (torch.randn(1, 1, 3, 16).expand(2, 6, 3, 16), torch.rand(2, 6)),
    "identical huge votes": lambda: (1e6 * torch.randn(1, 1, 3, 16).expand(2, 6, 3, 16), torch.rand(2, 6)),
    "zero votes": lambda: (torch.zeros(2, 6, 3, 16), torch.rand(2, 6)),
    "huge votes": lambda: (1e6 * torch.randn(2, 6, 3, 16), torch.rand(2, 6)),
    "tiny votes": lambda: (1e-6 * torch.randn(2, 6, 3, 16), torch.rand(2, 6)),
    "one parent far away": lambda: (
        torch.randn(2, 6, 3, 16) + torch.tensor([0.0, 0.0, 1e6])[:, None],
        torch.rand(2, 6),
    ),
    "one outlier": lambda: (torch.randn(2, 6, 3, 16) * (10.0 ** torch.arange(6))[:, None, None], torch.rand(2, 6)),
    "one child": lambda: (torch.randn(2, 1, 3, 16), torch.rand(2, 1)),
    "one parent": lambda: (torch.randn(2, 6, 1, 16), torch.rand(2, 6)),
    "one of each": lambda: (torch.randn(2, 1, 1, 1), torch.ones(2, 1)),
}
SETTINGS: dict[str, dict[str, float | bool]] = {
    "paper": {},
    "cold": {"inverse_temperature": 100.0},
    "scaled": {"cost_scale": 100.0},
    "standardised": {"standardise_costs": True, "inverse_temperature": 20.0},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finite_results_and_gradients(case: str, settings: str, dtype: torch.dtype) -> None:
    votes, a = (tensor.to(dtype).clone().requires_grad_() for tensor in CASES[case]())
    betas = [torch.randn(votes.shape[2], requires_grad=True) for _ in range(2)]
    routed = em_routing(votes, a, *betas, 4, **SETTINGS[settings])
    loss = sum((torch.randn_like(out) * out).sum() for out in routed)
    gradients = torch.autograd.grad(loss, [votes, a, *betas])
    for tensor in (*routed, *gradients):
        assert torch.isfinite(tensor).all()
    torch.testing.assert_close(routed.couplings.sum(2), torch.ones_like(routed.couplings[..., 0]))


@pytest.mark.parametrize("activation", [0.0, 1.0])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("competition", ["all", "types"])
def test_finite_layers(activation: float, scale: float, competition: str) -> None:
    layer = CapsuleConv2d(2, 4, 3, 4, 3, 2, pose="matrix", routing=EMRouting(competition=competition))
    poses = (scale * torch.randn(2, 6, 5, 2, 4)).requires_grad_()
    out = layer(Capsules(poses, torch.full((2, 6, 5, 2), activation)))
    (out.poses.square().mean().sqrt() + out.activations.sum()).backward() if scale else out.activations.sum().backward()
    for tensor in (*out, poses.grad, *(parameter.grad for parameter in layer.parameters())):
        assert tensor is not None
        assert torch.isfinite(tensor).all()


def test_a_plain_port_is_not_finite() -> None:
    """The reference guards nothing but σ²: what the eager backend's care is for."""
    votes, a = torch.randn(1, 6, 3, 16), torch.zeros(1, 6)
    assert em_routing(votes, a, torch.zeros(3), torch.zeros(3), backend="reference").poses.isnan().all()
    poses = em_routing(votes, a, torch.zeros(3), torch.zeros(3)).poses
    torch.testing.assert_close(poses[0, 0], votes[0, :, 0].mean(0), atol=2.0, rtol=0.0)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("iterations", [1, 3])
def test_guards_change_nothing_on_ordinary_input(scale: float, iterations: int) -> None:
    """float32 with every guard against float64 without any: the same but for float32's own rounding."""
    votes, a = scale * torch.randn(2, 60, 3, 4, dtype=torch.float64), torch.rand(2, 60, dtype=torch.float64)
    a[:, 0] = 0.0
    tensors = [votes, a, *torch.randn(2, 3, dtype=torch.float64)]
    for tensor in tensors:
        tensor.requires_grad_()
    unguarded = em_routing(*tensors, iterations, variance_floor=1e-300, backend="reference")
    single = [tensor.detach().float().requires_grad_() for tensor in tensors]
    guarded = em_routing(*single, iterations)
    torch.testing.assert_close(guarded.poses.double(), unguarded.poses, rtol=1e-3, atol=1e-4 * scale)
    torch.testing.assert_close(guarded.activations.double(), unguarded.activations, rtol=1e-4, atol=1e-6)
    expected = torch.autograd.grad(unguarded.poses.sum() / scale + unguarded.activations.sum(), tensors)
    ours = torch.autograd.grad(guarded.poses.sum() / scale + guarded.activations.sum(), single)
    for mine, theirs in zip(ours[:1] + ours[2:], expected[:1] + expected[2:], strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-2, atol=1e-3 * float(theirs.abs().max()))


def test_tight_cluster_far_from_zero() -> None:
    """σ² taken as Σ s V² − μ² would be rounding noise here: votes 1000 ± 0.1 in float32."""
    noise = torch.randn(1, 50, 1, 4)
    near, far = (
        em_routing(center + 0.1 * noise, torch.ones(1, 50), torch.zeros(1), torch.zeros(1), inverse_temperature=0.5)
        for center in (0.0, 1000.0)
    )
    torch.testing.assert_close(near.activations, far.activations, rtol=1e-2, atol=0.0)


def test_bf16_votes_are_routed_in_float32() -> None:
    votes, a = torch.randn(2, 5, 3, 4).bfloat16(), torch.rand(2, 5).bfloat16()
    betas = torch.zeros(2, 3)
    routed, expected = em_routing(votes, a, *betas), em_routing(votes.float(), a.float(), *betas)
    for ours, theirs in zip(routed, expected, strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs)
