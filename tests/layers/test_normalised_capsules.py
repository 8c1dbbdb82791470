"""Batch normalisation of parents: what it computes, when, and which routings can have it."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from capsella import _native
from capsella.layers import CapsuleConv2d, DenseCapsules
from capsella.layers.norms import NormaliseCapsules, NormaliseTypes
from capsella.routing import ROUTINGS, CapsuleConv, EMRouting, LogisticRouting, VariationalRouting, record
from capsella.training.average import average_of
from capsella.types import Capsules, ScoredCapsules

LOGISTIC = sorted(name for name, routing in ROUTINGS.items() if issubclass(routing, LogisticRouting))
every_routing = pytest.mark.parametrize("name", LOGISTIC)


def children(batch: int = 5) -> Capsules:
    return Capsules(torch.randn(batch, 3, 4, 2, 4), torch.rand(batch, 3, 4, 2))


def layer(name: str = "variational", **options: object) -> CapsuleConv2d:
    return CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=ROUTINGS[name](), norm="batch", **options)


def standardised(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return (x - x.mean(axes, keepdim=True)) / (x.var(axes, correction=0, keepdim=True) + 1e-5).sqrt()


@every_routing
def test_a_training_batch_is_standardised_by_type(name: str) -> None:
    bare = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=ROUTINGS[name]())
    normalised = layer(name)
    normalised.load_state_dict(bare.state_dict(), strict=False)
    u = children()
    before, after = bare.score(u), normalised(u)
    torch.testing.assert_close(after.poses, standardised(before.poses, (0, 1, 2, 4)), rtol=1e-4, atol=1e-5)
    odds = standardised(before.log_odds, (0, 1, 2))
    torch.testing.assert_close(after.activations, odds.sigmoid(), rtol=1e-4, atol=1e-5)


@every_routing
def test_log_odds_are_those_of_the_activations(name: str) -> None:
    """A layer that does not normalise, on the backend that it would take."""
    bare = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=ROUTINGS[name]())
    u = children()
    scored, routed = bare.score(u), bare(u)
    torch.testing.assert_close(scored.log_odds.sigmoid(), routed.activations, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(scored.poses, routed.poses, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("competition", ["all", "types"])
@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_em_has_log_odds_where_activations_are_saturated(competition: str, backend: str) -> None:
    """β_a = 1000: every activation is 1 in float32, and log-odds tell the parents apart."""
    routing = EMRouting(inverse_temperature=1.0, competition=competition, backend=backend)  # type: ignore[arg-type]
    em = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=routing)
    torch.nn.init.constant_(em.routing_parameters["beta_a"], 1000.0)
    scored = em.score(children(2))
    assert scored.log_odds.sigmoid().eq(1).all()
    assert scored.log_odds.std() > 0.1


def test_evaluation_takes_the_running_statistics() -> None:
    norm = NormaliseCapsules(3)
    for _ in range(200):
        norm(ScoredCapsules(2 + 3 * torch.randn(20, 2, 1, 3, 4), 5 - 0.5 * torch.randn(20, 2, 1, 3)))
    norm.eval()
    poses, log_odds = torch.randn(1, 2, 1, 3, 4), torch.randn(1, 2, 1, 3)
    out = norm(ScoredCapsules(poses, log_odds))
    torch.testing.assert_close(out.poses, (poses - 2) / 3, rtol=0.1, atol=0.1)
    torch.testing.assert_close(out.log_odds, (log_odds - 5) / 0.5, rtol=0.1, atol=0.5)
    assert not list(norm.parameters())
    assert len(list(NormaliseCapsules(3, affine=True).parameters())) == 4


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_of_half_precision_what_differs_little_is_not_rounded_away(kind: torch.dtype) -> None:
    norm = NormaliseTypes(2, affine=False)
    norm.running_mean.fill_(-0.25)
    norm.running_var.fill_(7e-5)
    x = -0.25 + 0.008 * torch.randn(4, 2, 50)
    halved = copy.deepcopy(norm).to(kind).eval()(x)
    assert halved.dtype == torch.float32
    torch.testing.assert_close(halved, norm.eval()(x), rtol=0.02, atol=0.02)
    assert norm.double()(x).dtype == torch.float64


def test_statistics_do_not_remember_where_they_started() -> None:
    """Of log-odds that vary by 0.001: after a single batch, as after many."""
    norm, x = NormaliseCapsules(3), 0.001 * torch.randn(50, 2, 1, 3)
    norm(ScoredCapsules(torch.randn(50, 2, 1, 3, 4), x))
    out = norm.eval()(ScoredCapsules(torch.randn(50, 2, 1, 3, 4), x))
    assert float(out.log_odds.std()) == pytest.approx(1 / (1 + 1e-5 / 1e-6) ** 0.5, rel=0.1)  # ε is ten variances


def test_running_statistics_are_a_mean_and_then_decay() -> None:
    """As PyTorch's with momentum None over ten batches, and with 0.1 from then on."""
    ours, even, decaying = NormaliseTypes(2), torch.nn.BatchNorm1d(2, momentum=None), torch.nn.BatchNorm1d(2)
    batches = torch.randn(15, 8, 2, 4)
    for x in batches[:10]:
        torch.testing.assert_close(ours(x), even(x) * ours.weight[:, None] + ours.bias[:, None])
    torch.testing.assert_close(ours.running_var, even.running_var)
    decaying.load_state_dict(ours.state_dict())
    for x in batches[10:]:
        ours(x), decaying(x)
    torch.testing.assert_close(ours.running_var, decaying.running_var)
    torch.testing.assert_close(ours.running_mean, decaying.running_mean)


def test_one_image_of_one_class_capsule_can_be_trained_on() -> None:
    """It has no variance: the running statistics serve."""
    dense = DenseCapsules((3, 4), 2, 4, 3, 4, tied=True, pose="matrix", routing=VariationalRouting(), norm="batch")
    expected = copy.deepcopy(dense).eval()
    u = children(1)
    out = dense.train()(u)
    torch.testing.assert_close(out.activations, expected(u).activations)
    assert out.poses.isfinite().all()


@every_routing
@pytest.mark.parametrize("activation", [0.0, 1.0])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e6])
def test_finite_gradients(name: str, activation: float, scale: float) -> None:
    normalised = layer(name)
    poses = (scale * torch.randn(2, 3, 4, 2, 4)).requires_grad_()
    out = normalised(Capsules(poses, torch.full((2, 3, 4, 2), activation)))
    (out.poses.square().sum() + out.activations.sum()).backward()
    gradients = [parameter.grad for parameter in normalised.parameters() if parameter.grad is not None]
    for tensor in (*out, poses.grad, *gradients):
        assert tensor is not None
        assert torch.isfinite(tensor).all()


def test_statistics_are_saved_and_averaged(tmp_path: Path) -> None:
    trained = layer()
    average = average_of(trained, 0.5)
    for _ in range(3):
        trained(children())
        average.update_parameters(trained)
    names = [name for name in trained.state_dict() if "running" in name]
    assert len(names) == 4
    torch.save(trained.state_dict(), tmp_path / "weights")
    again = layer()
    again.load_state_dict(torch.load(tmp_path / "weights"))
    u = children()
    assert torch.equal(again.eval()(u).activations, trained.eval()(u).activations)
    assert average.module.norm.poses.running_mean.abs().max() > 0


def test_what_is_recorded_is_what_the_layer_hands_on() -> None:
    normalised = layer()
    with record() as traces:
        out = normalised(children())
    assert torch.equal(traces[0].activations[-1], out.activations.flatten(0, 2))


@pytest.mark.usefixtures("as_users_call")
def test_exported_layers_agree() -> None:
    normalised = layer().eval()
    u = children(2)
    exported = torch.export.export(normalised, (u,)).module()
    for ours, expected in zip(exported(u), normalised(u), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", sorted(set(ROUTINGS) - set(LOGISTIC)))
def test_lengths_have_no_log_odds(name: str) -> None:
    with pytest.raises(ValueError, match=rf"norm: must be None for routing '{name}', .*; got 'batch'"):
        layer(name)
    bare = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=ROUTINGS[name]())
    with pytest.raises(ValueError, match=f"routing: must be one whose activations are of log-odds, got '{name}'"):
        bare.score(children())


@pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))
def test_em_with_its_kernels() -> None:
    one = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=EMRouting(backend="native"), norm="batch")
    u = children()
    native = one(u)
    one.routing = EMRouting(backend="eager")
    torch.testing.assert_close(native, one(u), rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("as_users_call")
def test_errors() -> None:
    with pytest.raises(ValueError, match="norm: must be 'batch' or None, got 'group'"):
        CapsuleConv2d(2, 4, 3, 4, 2, routing=EMRouting(), norm="group")  # type: ignore[arg-type]


def test_the_convolution_of_scored_capsules_is_that_of_capsules() -> None:
    """What `score_conv` and `capsule_conv` return has one shape."""
    u, weight = children(), torch.randn(2, 2, 2, 3, 2, 2)
    conv = CapsuleConv(*u, weight, layer().geometry)
    routing = VariationalRouting(bias=False)
    scored, routed = routing.score_conv(conv), routing.capsule_conv(conv)
    assert scored.log_odds.shape == routed.activations.shape == (5, 2, 3, 3)
    assert torch.equal(scored.poses, routed.poses)
