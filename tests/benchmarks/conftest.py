"""Ops small enough for a test, and contenders that are right, wrong and absent."""

import dataclasses

import pytest
import torch

from benchmarks.cases import ALL, DYNAMIC, Case, LayerOp
from benchmarks.measure import Contender, backend
from capsella.layers import CapsuleConv2d, DenseCapsules
from capsella.routing import Routing

CPU = torch.device("cpu")


@pytest.fixture
def em() -> LayerOp:
    def layer(routing: Routing) -> CapsuleConv2d:
        return CapsuleConv2d(2, 4, 3, 4, 2, 1, pose="matrix", routing=routing)

    return LayerOp("tiny-em", ALL, layer, (3, 4))


@pytest.fixture
def dense() -> LayerOp:
    def layer(routing: Routing) -> CapsuleConv2d:
        return DenseCapsules((2, 3), 2, 4, 3, 5, routing=routing)

    return LayerOp("tiny-dense", DYNAMIC, layer, (2, 3))


@pytest.fixture
def case(em: LayerOp) -> Case:
    return Case(em, 2, True)


@pytest.fixture
def good() -> Contender:
    """The eager backend under another name."""
    return Contender("good", backend("eager"), fused=True)


@pytest.fixture
def broken() -> Contender:
    """λ is one per cent off: poses are right, activations and gradients slightly wrong."""

    def routing(options: Routing) -> Routing:
        return dataclasses.replace(options, backend="eager", inverse_temperature=0.0101)  # type: ignore[call-arg]

    return Contender("broken", routing, fused=True)


@pytest.fixture
def absent() -> Contender:
    """A backend that no routing has."""
    return Contender("absent", backend("abacus"), fused=True)
