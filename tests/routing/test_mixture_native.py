"""Kernels that fit a mixture, against eager float64: as near as eager float32, for every instruction set.

Mixtures are of EM, variational and Heinsen's routing. What one of them alone does is tested in its own folder.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import _native
from capsella.routing import EMRouting, HeinsenRouting, Routing, VariationalRouting
from tests.routing.helpers import LAYERS, error, learned, same_bits, with_gradients

pytestmark = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))


RIVALS = ("all", "types")
EM: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one iteration": {"iterations": 1},
    "scaled": {"cost_scale": 50.0, "inverse_temperature": 0.1, "iterations": 2},
    "standardised": {"standardise_costs": True, "inverse_temperature": 20.0},
    "random start": {"start": "random", "cost_scale": 50.0, "inverse_temperature": 0.1, "iterations": 2},
    "soft first": {"early_sharpness": 0.2, "iterations": 4, "inverse_temperature": 0.1},
    "high floor": {"variance_floor": 0.5, "iterations": 4, "inverse_temperature": 0.1},
}
VARIATIONAL: dict[str, dict[str, Any]] = {
    "paper": {},
    "authors' code": {"proportions": False},
    "one iteration": {"iterations": 1},
    "other priors": {"concentration": 0.5, "mean_weight": 3.0, "precision": 4.0, "degrees": 0.7, "iterations": 2},
    "code, other priors": {"proportions": False, "concentration": 2.0, "mean_weight": 0.3, "iterations": 4},
}
HEINSEN: dict[str, dict[str, Any]] = {
    "paper": {},
    "one iteration": {"iterations": 1},
    "shared": {"shared": True, "iterations": 2},
    "no bias": {"bias": False},
    "large ε": {"epsilon": 0.5, "iterations": 4},
}
ROUTINGS: dict[str, tuple[type[Routing], dict[str, Any]]] = {
    **{f"EM, {name}, {rivals}": (EMRouting, {**EM[name], "competition": rivals}) for name in EM for rivals in RIVALS},
    **{f"variational, {name}": (VariationalRouting, {"bias": True, **VARIATIONAL[name]}) for name in VARIATIONAL},
    **{f"Heinsen, {name}": (HeinsenRouting, HEINSEN[name]) for name in HEINSEN},
}
# Standardised costs ask for three types.
CASES = [
    (kind, name) for kind in ROUTINGS for name in LAYERS if "standardised" not in kind or LAYERS[name].parents[0] > 2
]
usual = pytest.mark.parametrize(
    "kind", ["EM, defaults, all", "EM, defaults, types", "variational, paper", "Heinsen, paper"]
)


def inputs(kind: str, name: str) -> dict[str, Tensor]:
    return learned(routing(kind), LAYERS[name])


def routing(kind: str, **options: Any) -> Routing:
    of, chosen = ROUTINGS[kind]
    return of(**chosen, **options)


def run(
    kind: str, name: str, backend: str = "native", dtype: torch.dtype = torch.float32, tensors: Any = None
) -> list[Tensor]:
    """Poses, activations, and gradients; see `with_gradients`."""
    given = inputs(kind, name) if tensors is None else tensors
    return with_gradients(routing(kind, backend=backend), LAYERS[name], given, dtype)


@cache
def by_eager(kind: str, name: str) -> tuple[list[Tensor], ...]:
    """In float64 and in float32. Eager knows no instruction sets: it computes once for all of them."""
    return tuple(run(kind, name, "eager", dtype) for dtype in (torch.float64, torch.float32))


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_outputs_and_gradients(kind: str, name: str) -> None:
    exact, eager = by_eager(kind, name)
    for ours, theirs, truth in zip(run(kind, name), eager, exact, strict=True):
        assert ours.shape == truth.shape
        # Both sum in float32, in different orders, and EM magnifies what they round: either may be the luckier one.
        assert error(ours, truth) < max(1e-5, 20 * error(theirs, truth))


@usual
@pytest.mark.parametrize("name", ["4×4 poses", "tied", "many images"])
def test_the_same_bits_with_any_number_of_threads(threads: Callable[[int], None], kind: str, name: str) -> None:
    results = []
    for count in (1, 2, 5, 2):
        threads(count)
        results.append(run(kind, name))
    assert all(same_bits(other, results[0]) for other in results[1:])


@usual
def test_no_value_comes_from_memory_never_written(request: pytest.FixtureRequest, kind: str) -> None:
    expected = run(kind, "4×4 poses")
    request.getfixturevalue("nan_in_new_memory")
    assert same_bits(run(kind, "4×4 poses"), expected)


@usual
def test_strided_inputs(kind: str) -> None:
    tensors = inputs(kind, "4×4 poses")
    strided = dict(tensors)
    strided["poses"] = tensors["poses"].permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)  # as convolutions do
    strided["weight"] = tensors["weight"].transpose(0, -1).contiguous().transpose(0, -1)
    assert not strided["poses"].is_contiguous()
    assert not strided["weight"].is_contiguous()
    assert same_bits(*(run(kind, "4×4 poses", tensors=each) for each in (strided, tensors)))


@usual
def test_auto_is_native_for_float32_alone(kind: str) -> None:
    auto, native, eager = (run(kind, "4×4 poses", backend) for backend in ("auto", "native", "eager"))
    assert same_bits(auto, native)
    assert not same_bits(native, eager)
    assert same_bits(*(run(kind, "4×4 poses", backend, torch.float64) for backend in ("auto", "eager")))


@usual
def test_without_kernels(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(_native, "UNAVAILABLE", "not built")
    assert same_bits(*(run(kind, "2×2 poses", backend) for backend in ("auto", "eager")))
    with pytest.raises(ValueError, match="'native' cannot run here: not built"):
        run(kind, "2×2 poses")


@usual
@pytest.mark.parametrize(
    ("key", "factor"),
    [("activations", 0.0), ("poses", 0.0), ("poses", 1e6)],
    ids=["silent children", "children that are alike", "children far away"],
)
def test_finite_gradients(kind: str, key: str, factor: float) -> None:
    tensors = inputs(kind, "4×4 poses")
    tensors[key] = factor * tensors[key]
    assert all(tensor.isfinite().all() for tensor in run(kind, "4×4 poses", tensors=tensors))
