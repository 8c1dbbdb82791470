"""Concurrent routing against the authors' procedure written out, and one layer after the other against `route`."""

import pytest
import torch

from capsella.errors import ArgumentError
from capsella.layers import AttentionCapsules, AttentionStack
from capsella.routing import InvertedAttentionRouting, attend, capsule_votes, inverted_attention_routing, record
from capsella.types import Capsules


def stack(rounds: int, concurrent: bool = True) -> AttentionStack:
    routing = InvertedAttentionRouting(iterations=rounds)
    layers = [
        AttentionCapsules(2, 4, 3, 4, 2, routing=routing),
        AttentionCapsules(3, 4, 5, 4, (2, 1), routing=routing),
    ]
    return AttentionStack(layers, concurrent=concurrent)


def children() -> Capsules:
    return Capsules(torch.randn(2, 3, 3, 2, 4), torch.ones(2, 3, 3, 2))


def one_round(layer: AttentionCapsules, below: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor:
    conv = layer.routing_inputs(Capsules(below, torch.ones(below.shape[:-1])))
    votes, _ = capsule_votes(conv)
    before = None if own is None else own.reshape(-1, *own.shape[-2:])
    routed = attend(votes, before, **layer.routing_parameters, backend="reference")
    return conv.parents(routed.poses, routed.activations).poses


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_all_layers_at_once(rounds: int) -> None:
    """In a round, each layer sees its children and itself as they were after the round before."""
    layers, u = stack(rounds), children()
    first, second = layers
    p1 = one_round(first, u.poses, None)
    p2 = one_round(second, p1, None)
    for _ in range(rounds - 1):
        p1, p2 = one_round(first, u.poses, p1), one_round(second, p1, p2)
    torch.testing.assert_close(layers(u).poses, p2)


def test_one_after_the_other() -> None:
    layers, u = stack(3, concurrent=False), children()
    expected = u
    for layer in layers:
        conv = layer.routing_inputs(expected)
        routed = inverted_attention_routing(capsule_votes(conv)[0], **layer.routing_parameters, iterations=3)
        expected = conv.parents(routed.poses, routed.activations)
    torch.testing.assert_close(layers(u).poses, expected.poses)


@pytest.mark.parametrize("concurrent", [True, False])
def test_a_trace_a_layer(concurrent: bool) -> None:
    layers = stack(3, concurrent)
    with record() as traces:
        parents = layers(children())
    assert [trace.name for trace in traces] == ["inverted_attention"] * 2
    assert [[tuple(c.shape) for c in trace.couplings] for trace in traces] == [[(8, 8, 3)] * 3, [(4, 6, 5)] * 3]
    torch.testing.assert_close(traces[1].poses[-1].reshape(parents.poses.shape), parents.poses)


@pytest.mark.usefixtures("as_users_call")
def test_export() -> None:
    layers, u = stack(2), children()
    exported = torch.export.export(layers, (u,)).module()
    torch.testing.assert_close(exported(u).poses, layers(u).poses)


@pytest.mark.usefixtures("as_users_call")
def test_layers_of_one_number_of_rounds() -> None:
    for layers in ([], [*stack(2), *stack(3)]):
        with pytest.raises(ArgumentError) as error:
            AttentionStack(layers)
        assert error.value.argument == "iterations"
