"""Layers hold weights, functions do the work: both agree, and what a layer adds is tested here; attention stacks."""

import pytest
import torch

from capsella.layers import AttentionCapsules, AttentionStack, CapsuleConv2d, DenseCapsules
from capsella.routing import (
    DynamicRouting,
    EMRouting,
    Geometry,
    InvertedAttentionRouting,
    RandomRouting,
    Routing,
    RoutingInputs,
    SelfRouting,
    UniformRouting,
    attend,
    capsule_votes,
    dynamic_routing,
    inverted_attention_routing,
    length,
)
from capsella.types import Capsules

ROUTINGS = [
    DynamicRouting(),
    DynamicRouting(2, bias=True, leaky=True),
    UniformRouting(),
    RandomRouting(seed=1),
    SelfRouting(),
    InvertedAttentionRouting(iterations=3),
    EMRouting(),
]


def children(*shape: int) -> Capsules:
    """[b h w types_in pose_in] poses of length about 1."""
    poses = torch.randn(shape) / shape[-1] ** 0.5
    return Capsules(poses, length(poses))


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("tied", [False, True])
def test_module_and_function_agree(routing: Routing, tied: bool) -> None:
    layer = CapsuleConv2d(3, 4, 2, 5, kernel=(2, 3), stride=(2, 1), tied=tied, routing=routing)
    for parameter in layer.routing_parameters.values():
        torch.nn.init.normal_(parameter)
    u = children(2, 5, 4, 3, 4)
    conv = RoutingInputs(*u, layer.weight, Geometry((2, 3), (2, 1), tied))
    expected = routing.route_windows(conv, **layer.routing_parameters)
    out = layer(u)
    assert out.poses.shape == (2, 2, 2, 2, 5)
    for ours, theirs in zip(out, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_a_dense_layer_routes_all_children_at_once() -> None:
    layer = DenseCapsules((3, 2), 4, 5, types_out=6, pose_out=7)
    u = children(2, 3, 2, 4, 5)
    out = layer(u)
    assert out.poses.shape == (2, 1, 1, 6, 7)
    votes = torch.einsum("byxcp,yxcjpd->byxcjd", u.poses, layer.weight).flatten(1, 3)
    expected = dynamic_routing(votes, iterations=3, backend="reference")
    torch.testing.assert_close(out.poses[:, 0, 0], expected.poses)
    torch.testing.assert_close(out.activations[:, 0, 0], expected.activations)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_routing_is_float32_under_autocast(routing: Routing) -> None:
    layer = CapsuleConv2d(2, 3, 4, 5, kernel=2, routing=routing)
    rounded = Capsules(*(part.bfloat16() for part in children(2, 3, 3, 2, 3)))
    expected = layer(Capsules(*(part.float() for part in rounded)))
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(rounded)
    for ours, theirs in zip(out, expected, strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("as_users_call")
def test_refusals_name_the_argument() -> None:
    layer, dense = CapsuleConv2d(2, 3, 4, 5, kernel=3), DenseCapsules((3, 2), 4, 5, types_out=6, pose_out=7)
    for argument, call in (
        ("capsule grid", lambda: layer(children(1, 2, 3, 2, 3))),
        ("children", lambda: layer(children(1, 3, 3, 7, 3))),
        ("children", lambda: layer(children(1, 3, 3, 2, 4))),
        ("children", lambda: dense(children(2, 4, 2, 4, 5))),  # a larger grid
        ("weight_sd", lambda: CapsuleConv2d(2, 4, 2, 4, 1, weight_sd=0.0)),
        ("kernel", lambda: CapsuleConv2d(2, 3, 4, 5, kernel=(3, 3, 3))),  # type: ignore[arg-type]
        ("pose", lambda: CapsuleConv2d(2, 4, 3, 4, 3, pose="tensor")),  # type: ignore[arg-type]
        ("pose", lambda: CapsuleConv2d(2, 8, 3, 8, 3, pose="matrix")),
        ("pose", lambda: CapsuleConv2d(2, 16, 3, 9, 3, pose="matrix")),
        ("types_out", lambda: DenseCapsules((2, 2), 3, 4, 0, 4)),
    ):
        with pytest.raises(ValueError, match=f"^{argument}: m"):
            call()


def stack(rounds: int, concurrent: bool = True) -> AttentionStack:
    routing = InvertedAttentionRouting(iterations=rounds)
    layers = [
        AttentionCapsules(2, 4, 3, 4, 2, routing=routing),
        AttentionCapsules(3, 4, 5, 4, (2, 1), routing=routing),
    ]
    return AttentionStack(layers, concurrent=concurrent)


def stack_children() -> Capsules:
    return Capsules(torch.randn(2, 3, 3, 2, 4), torch.ones(2, 3, 3, 2))


def one_round(layer: AttentionCapsules, below: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor:
    conv = layer.routing_inputs(Capsules(below, torch.ones(below.shape[:-1])))
    votes, _ = capsule_votes(conv)
    before = None if own is None else own.reshape(-1, *own.shape[-2:])
    routed = attend(votes, before, **layer.routing_parameters, backend="reference")
    return conv.parents(routed.poses, routed.activations).poses


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_all_layers_at_once(rounds: int) -> None:
    """In a round, each layer sees its stack_children and itself as they were after the round before."""
    layers, u = stack(rounds), stack_children()
    first, second = layers
    p1 = one_round(first, u.poses, None)
    p2 = one_round(second, p1, None)
    for _ in range(rounds - 1):
        p1, p2 = one_round(first, u.poses, p1), one_round(second, p1, p2)
    torch.testing.assert_close(layers(u).poses, p2)


def test_one_after_the_other() -> None:
    layers, u = stack(3, concurrent=False), stack_children()
    expected = u
    for layer in layers:
        conv = layer.routing_inputs(expected)
        routed = inverted_attention_routing(capsule_votes(conv)[0], **layer.routing_parameters, iterations=3)
        expected = conv.parents(routed.poses, routed.activations)
    torch.testing.assert_close(layers(u).poses, expected.poses)
