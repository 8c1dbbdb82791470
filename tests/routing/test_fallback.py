"""`auto` warns once for each reason why it takes eager on a CPU, and never where eager was asked for or is meant."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from capsella import _native
from capsella.errors import CapsellaWarning
from capsella.layers import CapsuleConv2d
from capsella.routing import (
    ROUTINGS,
    DynamicRouting,
    EMRouting,
    Geometry,
    Routing,
    RoutingInputs,
    SelfAttentionRouting,
)
from capsella.routing.backends import choose_layer_backend
from capsella.types import Capsules
from tests.routing.helpers import needs_kernels

GRID = (3, 3)


@pytest.fixture(autouse=True)
def _no_warning_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsella.errors._warned", set())


@pytest.fixture
def not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "UNAVAILABLE", "they are not built")


@contextmanager
def warned() -> Iterator[list[str]]:
    """The texts of our warnings; Python's own filter, which shows a warning once for each line of code, is off."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts: list[str] = []
        yield texts
    texts += [str(warning.message) for warning in caught if warning.category is CapsellaWarning]


def layer(routing: Routing, pose: int = 16) -> CapsuleConv2d:
    return CapsuleConv2d(2, pose, 3, pose, 2, routing=routing)


def children(pose: int = 16) -> Capsules:
    return Capsules(torch.randn(2, *GRID, 2, pose), torch.rand(2, *GRID, 2))


def conv(dtype: torch.dtype, device: str = "cpu") -> RoutingInputs:
    shapes = ((1, *GRID, 2, 4), (1, *GRID, 2), (2, 2, 2, 3, 4, 5))
    return RoutingInputs(*(torch.zeros(shape, dtype=dtype, device=device) for shape in shapes), Geometry((2, 2)))


@needs_kernels
@pytest.mark.parametrize("name", [name for name, routing in ROUTINGS.items() if "native" in routing.fused])
def test_auto_is_native_in_float32(name: str) -> None:
    assert choose_layer_backend(ROUTINGS[name](), conv(torch.float32)) == "native"


@pytest.mark.usefixtures("not_built")
def test_kernels_that_are_not_built_are_named_once() -> None:
    with warned() as texts:
        for routing in (EMRouting(), DynamicRouting(), EMRouting(competition="types"), SelfAttentionRouting()):
            for _ in range(2):
                layer(routing)(children())
    assert len(texts) == 1
    assert texts[0].startswith("em routing")
    assert texts[0].endswith("they are not built")


@needs_kernels
def test_each_reason_is_named_once() -> None:
    with warned() as texts:
        for _ in range(2):
            for dtype in (torch.float64, torch.bfloat16):
                DynamicRouting().route_windows(conv(dtype))
            layer(DynamicRouting(), pose=289)(children(289))
    assert len(texts) == 3
    for text, reason in zip(texts, ("float64", "bfloat16", "289"), strict=True):
        assert reason in text
        assert 'backend="eager"' in text
