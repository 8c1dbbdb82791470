"""Routing some images at a time: the same numbers, and memory for the votes of a part alone."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from capsella.layers import CapsuleConv2d
from capsella.routing import Routing, SelfAttentionRouting, SelfRouting, functional, record
from capsella.types import Capsules
from tests.routing.helpers import assert_close

TYPES, POSE, GRID = 3, 4, 6
SELF, SELF_ATTENTION = SelfRouting(backend="eager"), SelfAttentionRouting(backend="eager")
every_routing = pytest.mark.parametrize("routing", [SELF, SELF_ATTENTION], ids=lambda routing: routing.name)


def layer(routing: Routing) -> nn.Module:
    torch.manual_seed(0)
    return CapsuleConv2d(TYPES, POSE, 2, POSE, kernel=3, routing=routing)


def children(images: int) -> Capsules:
    generator = torch.Generator().manual_seed(1)
    poses = torch.randn(images, GRID, GRID, TYPES, POSE, generator=generator)
    activations = torch.rand(images, GRID, GRID, TYPES, generator=generator)
    return Capsules(poses.requires_grad_(), activations.requires_grad_())


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One image is a part."""
    monkeypatch.setitem(functional.CHUNK, "cpu", 1)


def gradients(module: nn.Module, given: Capsules) -> tuple[Tensor, ...]:
    out = module(given)
    loss = (
        out.poses * torch.arange(out.poses.numel()).reshape(out.poses.shape).sin()
    ).sum() + out.activations.square().sum()
    inputs = [given.poses, *module.parameters()]
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


@every_routing
def test_parts_are_the_whole(routing: Routing, monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = layer(routing), children(5)
    whole, slopes = module(given), gradients(module, given)
    small_parts(monkeypatch)
    assert_close(module(given), whole, rtol=1e-5, atol=1e-6)
    assert_close(gradients(module, given), slopes, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert_close(module(given), whole, rtol=1e-5, atol=1e-6)


@every_routing
def test_no_votes_are_kept(routing: Routing, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(images: int) -> int:
        storages: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        module, given = layer(routing), children(images)
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            module(given)
        return sum(storages.values())

    whole = kept(8)
    small_parts(monkeypatch)
    inputs = sum(tensor.numel() * tensor.element_size() for tensor in children(8))
    assert kept(8) <= inputs < whole


def test_a_backward_pass_leaves_no_traces_of_what_was_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch)
    given = children(3)
    loss = layer(SELF)(given).poses.sum()
    with record() as traces:
        loss.backward()
    assert traces == []
