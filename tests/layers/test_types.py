"""Layers of other types than float32, and gradient checkpointing: the same gradients."""

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from capsella.errors import ArgumentError
from capsella.layers import DenseCapsules
from capsella.routing import (
    DynamicRouting,
    EMRouting,
    HeinsenRouting,
    Routing,
    SelfAttentionRouting,
    VariationalRouting,
)
from capsella.routing.backends import kernel_shape
from capsella.types import Capsules

ROUTINGS = (DynamicRouting(), EMRouting(), VariationalRouting(), HeinsenRouting(), SelfAttentionRouting())


def layer_and_children(routing: Routing) -> tuple[DenseCapsules, Capsules]:
    torch.manual_seed(0)
    layer = DenseCapsules((2, 2), 3, 4, 5, 4, routing=routing)
    return layer, Capsules(torch.randn(2, 2, 2, 3, 4), torch.rand(2, 2, 2, 3))


def gradients(layer: DenseCapsules) -> dict[str, torch.Tensor]:
    """By name; zeros where the poses do not depend on a parameter, of which the eager backend gives None."""
    found = {
        name: (torch.zeros_like(one) if one.grad is None else one.grad).float()
        for name, one in layer.named_parameters()
    }
    layer.zero_grad()
    return found


@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda routing: routing.name)
def test_gradient_checkpointing(routing) -> None:
    layer, children = layer_and_children(routing)
    layer(children).poses.square().sum().backward()
    expected = gradients(layer)
    asking = Capsules(children.poses.clone().requires_grad_(), children.activations)
    poses = checkpoint(lambda *parts: layer(Capsules(*parts)).poses, *asking, use_reentrant=False)
    poses.square().sum().backward()
    torch.testing.assert_close(gradients(layer), expected)


def test_native_kernels_take_float32_alone() -> None:
    """Neither the layer nor the operator itself reads or fills a copy."""
    layer, children = layer_and_children(EMRouting(backend="native"))
    conv = layer.routing_inputs(children)
    wide = replace(conv, weight=conv.weight.double())
    with pytest.raises(ValueError, match=r"^backend: 'native' cannot run here"):
        layer.routing.route_windows(wide, **layer.routing_parameters)
    with pytest.raises(ArgumentError, match=r"^weight: must"):
        layer.routing._route_native(wide, tuple(layer.routing_parameters.values()))


def test_their_operators_take_sizes_of_their_arrays_alone() -> None:
    layer, children = layer_and_children(EMRouting())
    sizes = layer.routing_inputs(children).shape
    kernel_shape(list(sizes))
    for wrong in ({"rows": 3}, {"stride_height": 0}, {"c_in": 0}, {"e": 300}):
        with pytest.raises(ArgumentError) as error:
            kernel_shape(list(sizes._replace(**wrong)))
        assert error.value.argument == "sizes"
