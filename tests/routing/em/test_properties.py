"""What holds for EM routing on any input."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capsella.layers import CapsuleConv2d
from capsella.routing import CapsuleConv, EMRouting, Geometry, em_routing, record
from capsella.types import Capsules

SIZES = st.tuples(*(st.integers(1, most) for most in (3, 9, 5, 6)))


@given(SIZES, st.integers(1, 4), st.sampled_from([1e-3, 1.0, 1e3]))
def test_couplings_sum_to_one_and_activations_are_probabilities(
    size: tuple[int, int, int, int], iterations: int, scale: float
) -> None:
    b, i, j, _ = size
    routed = em_routing(torch.randn(size) * scale, torch.rand(b, i), torch.randn(j), torch.randn(j), iterations)
    torch.testing.assert_close(routed.couplings.sum(2), torch.ones(b, i))
    assert ((routed.activations >= 0) & (routed.activations <= 1)).all()


def test_permuted_children_change_nothing() -> None:
    votes, a = torch.randn(2, 7, 3, 4, dtype=torch.float64), torch.rand(2, 7, dtype=torch.float64)
    betas = torch.randn(2, 3, dtype=torch.float64)
    order = torch.randperm(7)
    routed, permuted = em_routing(votes, a, *betas), em_routing(votes[:, order], a[:, order], *betas)
    torch.testing.assert_close(permuted.poses, routed.poses)
    torch.testing.assert_close(permuted.activations, routed.activations)
    torch.testing.assert_close(permuted.couplings, routed.couplings[:, order])


@pytest.mark.parametrize("competition", ["all", "types"])
def test_an_image_does_not_depend_on_its_neighbours(competition: str) -> None:
    layer = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=EMRouting(competition=competition))
    poses, a = torch.randn(4, 5, 4, 2, 4), torch.rand(4, 5, 4, 2)
    together = layer(Capsules(poses, a))
    alone = layer(Capsules(poses[2:3], a[2:3]))
    for all_images, one_image in zip(together, alone, strict=True):
        torch.testing.assert_close(all_images[2:3], one_image)


def test_all_and_types_agree_where_windows_share_no_child() -> None:
    poses, a = torch.randn(2, 4, 6, 2, 4), torch.rand(2, 4, 6, 2)
    weight, betas = torch.randn(2, 3, 2, 3, 4, 4), {"beta_u": torch.randn(3), "beta_a": torch.randn(3)}
    conv = CapsuleConv(poses, a, weight, Geometry((2, 3), (2, 3)))
    results = [EMRouting(competition=c).capsule_conv(conv, **betas) for c in ("all", "types")]
    torch.testing.assert_close(*results)


def test_all_and_types_differ_where_windows_overlap() -> None:
    poses, a = torch.randn(2, 4, 6, 2, 4), torch.rand(2, 4, 6, 2)
    weight, betas = torch.randn(2, 3, 2, 3, 4, 4), {"beta_u": torch.randn(3), "beta_a": torch.randn(3)}
    conv = CapsuleConv(poses, a, weight, Geometry((2, 3)))
    everywhere, types = (EMRouting(competition=c).capsule_conv(conv, **betas) for c in ("all", "types"))
    assert (everywhere.poses - types.poses).abs().max() > 0.01


def test_a_child_without_activation_has_no_say() -> None:
    votes, a = torch.randn(1, 5, 3, 4, dtype=torch.float64), torch.rand(1, 5, dtype=torch.float64)
    a[0, 2] = 0.0
    betas = torch.randn(2, 3, dtype=torch.float64)
    routed = em_routing(votes, a, *betas)
    others = [0, 1, 3, 4]
    without = em_routing(votes[:, others], a[:, others], *betas)
    torch.testing.assert_close(routed.poses, without.poses)
    torch.testing.assert_close(routed.activations, without.activations)


def test_module_and_function_agree() -> None:
    layer = CapsuleConv2d(3, 4, 2, 4, (2, 3), routing=EMRouting(iterations=2, inverse_temperature=0.5))
    with torch.no_grad():
        layer.routing_parameters["beta_u"].copy_(torch.tensor([0.3, -0.2]))
        layer.routing_parameters["beta_a"].copy_(torch.tensor([1.0, 2.0]))
    poses, a = torch.randn(5, 2, 3, 3, 4), torch.rand(5, 2, 3, 3)
    votes = torch.einsum("byxsp,yxstpd->byxstd", poses, layer.weight.detach()).reshape(5, 18, 2, 4)
    routed = em_routing(
        votes, a.reshape(5, 18), torch.tensor([0.3, -0.2]), torch.tensor([1.0, 2.0]), 2, inverse_temperature=0.5
    )
    out = layer(Capsules(poses, a))
    torch.testing.assert_close(out.poses.reshape(5, 2, 4), routed.poses)
    torch.testing.assert_close(out.activations.reshape(5, 2), routed.activations)


def test_float32_inside_bf16_autocast() -> None:
    layer = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=EMRouting())
    children = Capsules(torch.randn(2, 3, 3, 2, 4), torch.rand(2, 3, 3, 2))
    votes, a = torch.randn(2, 5, 3, 4), torch.rand(2, 5)
    expected = layer(children), em_routing(votes, a, torch.zeros(3), torch.zeros(3))
    with torch.autocast("cpu", torch.bfloat16):
        ours = layer(children), em_routing(votes, a, torch.zeros(3), torch.zeros(3))
    for mine, theirs in zip(ours, expected, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


def test_recording_keeps_every_iteration() -> None:
    votes, a = torch.randn(2, 5, 3, 4), torch.rand(2, 5)
    with record() as traces:
        routed = em_routing(votes, a, torch.zeros(3), torch.zeros(3), 3)
    (trace,) = traces
    assert trace.name == "em"
    assert [len(kept) for kept in (trace.couplings, trace.poses, trace.distances)] == [3, 3, 3]
    assert torch.equal(trace.couplings[-1], routed.couplings)
    assert torch.equal(trace.poses[-1], routed.poses)
    for poses, distances in zip(trace.poses, trace.distances, strict=True):
        torch.testing.assert_close(distances, (votes - poses[:, None]).norm(dim=3))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_scaled_beta_a_is_the_product(backend: str) -> None:
    """What a layer learns as b is s·b to the procedure, in every backend, gradients included."""
    poses, a = torch.randn(2, 4, 6, 2, 16), torch.rand(2, 4, 6, 2)
    weight, b = torch.randn(2, 3, 2, 3, 4, 4), torch.randn(3)
    conv = CapsuleConv(poses, a, weight, Geometry((2, 3), matrix=True))
    scaled, plain = b.clone().requires_grad_(), (300 * b).requires_grad_()
    with torch.no_grad():
        beta_u = torch.randn(3)
    results = [
        EMRouting(beta_a_scale=scale, backend=backend).capsule_conv(conv, beta_u=beta_u, beta_a=x)
        for scale, x in ((300.0, scaled), (None, plain))
    ]
    torch.testing.assert_close(*results)
    for result in results:
        result.activations.square().sum().backward()
    torch.testing.assert_close(scaled.grad, 300 * plain.grad)


def test_what_a_scale_of_beta_a_is_for() -> None:
    """Without data a parent is half active, and training cannot move that; with a scale it is off, and it can."""
    for scale, active, moves in ((None, 0.5, False), (2500.0, 0.08, True)):
        torch.manual_seed(0)
        routing = EMRouting(iterations=2, cost_scale=100.0, beta_a_scale=scale)
        layer = CapsuleConv2d(2, 16, 3, 16, 2, pose="matrix", routing=routing)
        poses, nothing = torch.randn(2, 4, 4, 2, 16), torch.zeros(2, 4, 4, 2)
        optimizer = torch.optim.Adam(layer.parameters(), lr=3e-3)
        before = layer(Capsules(poses, nothing)).activations.detach()
        assert before.max().item() == pytest.approx(active, abs=0.01)
        for _ in range(10):
            optimizer.zero_grad()
            (-layer(Capsules(poses, nothing)).activations.sum()).backward()
            optimizer.step()
        risen = (layer(Capsules(poses, nothing)).activations - before).min().item()
        assert (risen > 0.004) == moves
