from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from capsella.errors import ArgumentError
from capsella.layers import CapsuleConv2d
from capsella.routing import DynamicRouting, Routed, Routing, record
from capsella.types import Capsules


def test_layers_come_in_the_order_of_the_forward_pass() -> None:
    layers = torch.nn.Sequential(
        CapsuleConv2d(2, 4, 3, 4, kernel=2, routing=DynamicRouting(iterations=2)),
        CapsuleConv2d(3, 4, 5, 6, kernel=2),
    )
    with record() as traces:
        layers(Capsules(torch.randn(2, 3, 4, 2, 4), torch.rand(2, 3, 4, 2)))
    assert [len(trace.couplings) for trace in traces] == [2, 3]
    # b = images · positions: 2 images × 2×3 positions, then 2 images × 1×2 positions
    assert [tuple(trace.couplings[0].shape) for trace in traces] == [(12, 8, 3), (4, 12, 5)]


@dataclass(frozen=True)
class Silent(Routing):
    """A routing that keeps no trace."""

    name: ClassVar[str] = "silent"

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        couplings = torch.full(votes.shape[:3], 1 / votes.shape[2])
        return Routed(
            votes.mean(1), activations.mean(1, keepdim=True).expand(votes.shape[0], votes.shape[2]), couplings
        )


@dataclass(frozen=True)
class Wrong(Routing):
    """A routing with a mistake in one part of its result."""

    name: ClassVar[str] = "wrong"
    part: str = ""

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        routed = Silent().route(votes, activations)
        if self.part == "result":
            return tuple(routed)  # type: ignore[return-value]
        right: Tensor = getattr(routed, self.part)
        return routed._replace(**{self.part: right.unsqueeze(2) if right.ndim == 2 else right.transpose(1, 2)})


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("part", ["poses", "activations", "couplings", "result"])
def test_a_wrong_result_of_a_routing_is_named(part: str) -> None:
    layer = CapsuleConv2d(2, 4, 3, 4, kernel=1, routing=Wrong(part))
    with pytest.raises(ArgumentError) as error:
        layer(Capsules(torch.randn(2, 3, 4, 2, 4), torch.rand(2, 3, 4, 2)))
    assert error.value.argument.startswith(part)
    assert "'wrong'" in error.value.argument


def test_a_routing_that_keeps_no_trace_has_one_of_its_result() -> None:
    layers = torch.nn.Sequential(
        CapsuleConv2d(2, 4, 3, 4, kernel=2, routing=DynamicRouting(iterations=2)),
        CapsuleConv2d(3, 4, 3, 4, kernel=1, routing=Silent()),
    )
    with record() as traces:
        out = layers(Capsules(torch.randn(2, 3, 4, 2, 4), torch.rand(2, 3, 4, 2)))
    assert [(trace.name, len(trace.couplings)) for trace in traces] == [("dynamic", 2), ("silent", 1)]
    assert torch.equal(traces[1].activations[0].reshape(out.activations.shape), out.activations)
