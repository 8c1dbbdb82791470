"""Ops small enough for a test, of every kind that the registry holds."""

import dataclasses

import pytest
import torch

from benchmarks.cases import DYNAMIC, EM, Bars, Case
from benchmarks.contenders import EAGER, PLAIN, Contender, backend
from benchmarks.ops import LayerOp
from capsella.layers import CapsuleConv2d, DenseCapsules
from capsella.routing import Routing

CPU = torch.device("cpu")


@pytest.fixture
def em() -> LayerOp:
    def layer(routing: Routing) -> CapsuleConv2d:
        return CapsuleConv2d(2, 4, 3, 4, 2, 1, pose="matrix", routing=routing)

    return LayerOp("tiny-em", EM, layer, (3, 4), 2, 4)


@pytest.fixture
def dense() -> LayerOp:
    def layer(routing: Routing) -> CapsuleConv2d:
        return DenseCapsules((2, 3), 2, 4, 3, 5, routing=routing)

    return LayerOp("tiny-dense", DYNAMIC, layer, (2, 3), 2, 4)


@pytest.fixture
def case(em: LayerOp) -> Case:
    return Case(em, 2, True, Bars(plain=1e-9, memory=1e9, images_per_second=1e12))


@pytest.fixture
def good() -> Contender:
    """Claims a speed-up, and is right: the eager backend under another name."""
    return Contender("good", backend("eager"), fused=True)


@pytest.fixture
def broken() -> Contender:
    """Claims a speed-up, and has another λ: poses are right, activations and gradients a little wrong."""

    def routing(options: Routing) -> Routing:
        return dataclasses.replace(options, backend="eager", inverse_temperature=0.0101)  # type: ignore[call-arg]

    return Contender("broken", routing, fused=True)


@pytest.fixture
def absent() -> Contender:
    """A backend that no routing has."""
    return Contender("absent", backend("abacus"), fused=True)


@pytest.fixture
def yardsticks() -> tuple[Contender, ...]:
    return PLAIN, EAGER
