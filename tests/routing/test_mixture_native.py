"""The C++ kernels of EM, variational and Heinsen routing against eager float64: as near as eager float32."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from capsella.layers import CapsuleConv2d
from capsella.routing import EMRouting, HeinsenRouting, Routing, RoutingInputs, VariationalRouting
from capsella.types import Capsules
from tests.routing.helpers import (
    CONV,
    LAYERS,
    asking,
    error,
    kernel_cases,
    learned,
    needs_kernels,
    same_bits,
    with_gradients,
)

pytestmark = needs_kernels
EM: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one iteration": {"iterations": 1},
    "scaled": {"cost_scale": 50.0, "inverse_temperature": 0.1, "iterations": 2},
    "standardised": {"standardise_costs": True, "inverse_temperature": 20.0},
    "random start": {"start": "random", "cost_scale": 50.0, "inverse_temperature": 0.1, "iterations": 2},
    "soft first": {"early_likelihood_weight": 0.2, "iterations": 4, "inverse_temperature": 0.1},
    "high floor": {"variance_floor": 0.5, "iterations": 4, "inverse_temperature": 0.1},
}
RIVALS = ("all", "types")
ROUTINGS: dict[str, Routing] = {
    **{f"EM, {name}, {rivals}": EMRouting(**EM[name], competition=rivals) for name in EM for rivals in RIVALS},
    "variational, paper": VariationalRouting(),
    "variational, authors' code": VariationalRouting(proportions=False),
    "variational, one iteration": VariationalRouting(1),
    "variational, priors": VariationalRouting(2, concentration=0.5, mean_weight=3.0, precision=4.0, degrees=0.7),
    "Heinsen, paper": HeinsenRouting(),
    "Heinsen, one iteration": HeinsenRouting(1),
    "Heinsen, shared": HeinsenRouting(2, shared=True),
    "Heinsen, no bias": HeinsenRouting(bias=False),
    "Heinsen, large ε": HeinsenRouting(4, epsilon=0.5),
}
each_kind = pytest.mark.parametrize(
    "kind", ["EM, defaults, all", "EM, defaults, types", "variational, paper", "Heinsen, paper"]
)


def run(
    kind: str, name: str, backend: str = "native", dtype: torch.dtype = torch.float32, tensors: Any = None
) -> list[Tensor]:
    """Poses, activations, and gradients; see `with_gradients`."""
    routing = with_backend(ROUTINGS[kind], backend)
    return with_gradients(routing, LAYERS[name], learned(routing, LAYERS[name]) if tensors is None else tensors, dtype)


def with_backend(routing: Routing, backend: str) -> Routing:
    return type(routing)(**{**vars(routing), "backend": backend})


@cache
def by_eager(kind: str, name: str) -> tuple[list[Tensor], ...]:
    """Results in float64 and in float32, computed once for all instruction sets."""
    return tuple(run(kind, name, "eager", dtype) for dtype in (torch.float64, torch.float32))


@kernel_cases(list(ROUTINGS), list(LAYERS))
@pytest.mark.usefixtures("instruction_set")
def test_outputs_and_gradients(options: str, name: str) -> None:
    if "standardised" in options and LAYERS[name].parents[0] < 3:
        pytest.skip("standardised costs need three types")
    exact, eager = by_eager(options, name)
    for ours, theirs, truth in zip(run(options, name), eager, exact, strict=True):
        assert ours.shape == truth.shape
        # Both sum in float32, in different orders, and EM magnifies what they round: either may be the luckier one.
        assert error(ours, truth) < max(1e-4, 20 * error(theirs, truth))


@kernel_cases(RIVALS, list(LAYERS))
@pytest.mark.usefixtures("instruction_set")
def test_votes_in_bfloat16(options: Any, name: str) -> None:
    """As near to the rounded votes as eager is; poses of 3×3 and of 5 elements have an odd number to pair."""
    routing = EMRouting(competition=options, backend="native", votes="bfloat16")
    # Numbers of float32, held in float64: to bfloat16 both round alike.
    tensors = {key: x.float().double() for key, x in learned(EMRouting(), LAYERS[name]).items()}
    rounded = {**tensors, **{key: tensors[key].bfloat16().double() for key in ("poses", "weight")}}
    eager = EMRouting(competition=options, backend="eager")
    exact, single = (with_gradients(eager, LAYERS[name], rounded, dtype) for dtype in (torch.float64, torch.float32))
    native = with_gradients(routing, LAYERS[name], tensors, torch.float32)
    for ours, theirs, truth in zip(native, single, exact, strict=True):
        assert ours.shape == truth.shape
        assert error(ours, truth) < max(1e-4, 20 * error(theirs, truth))


@each_kind
@pytest.mark.parametrize("name", ["4×4 poses", "tied", "many images"])
def test_the_same_bits_with_any_number_of_threads(threads: Callable[[int], None], kind: str, name: str) -> None:
    results = []
    for count in (1, 2, 5, 2):
        threads(count)
        results.append(run(kind, name))
    assert all(same_bits(other, results[0]) for other in results[1:])


@each_kind
def test_memory_never_written_and_strided_inputs(request: pytest.FixtureRequest, kind: str) -> None:
    tensors = learned(ROUTINGS[kind], LAYERS["4×4 poses"])
    expected = run(kind, "4×4 poses")
    strided = dict(tensors)
    strided["poses"] = tensors["poses"].permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)  # as convolutions do
    strided["weight"] = tensors["weight"].transpose(0, -1).contiguous().transpose(0, -1)
    assert not any(strided[key].is_contiguous() for key in ("poses", "weight"))
    request.getfixturevalue("nan_in_new_memory")
    assert same_bits(run(kind, "4×4 poses", tensors=strided), expected)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("kind", ["em", "heinsen", "variational"])
@pytest.mark.parametrize("name", ["4×4 poses", "tied"])
def test_the_operators_keep_torch_s_contract(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the very arguments with which a layer calls them."""
    routing = {kind.partition(",")[0].lower(): options for kind, options in ROUTINGS.items()}[kind]
    operator = getattr(torch.ops.capsella, f"{kind}_capsule_conv").default
    calls: list[tuple[Any, ...]] = []
    layer = LAYERS[name]
    tensors = asking(learned(routing, layer), torch.float32, without=["vote_offset"])
    conv = RoutingInputs(**{key: tensors[key] for key in CONV}, geometry=layer.geometry)

    class Calls(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is operator:
                calls.append(args)
            return function(*args, **(kwargs or {}))

    with Calls():
        routing.route_windows(conv, **{key: x for key, x in tensors.items() if key not in CONV})
    (arguments,) = calls
    again = [x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x for x in arguments]
    again[4] = conv.vote_offset  # a constant
    torch.library.opcheck(operator, tuple(again))


class RoutedImages(Dataset[Tensor]):
    """Images routed in the worker process that loads them."""

    def __init__(self) -> None:
        self.layer = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=EMRouting(backend="native"))
        self.children = Capsules(torch.randn(4, 3, 3, 2, 4), torch.rand(4, 3, 3, 2))

    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> Tensor:
        with torch.no_grad():
            parents: Capsules = self.layer(Capsules(*(part[k : k + 1] for part in self.children)))
        return parents.poses[0]


def test_forked_workers_live(threads: Callable[[int], None]) -> None:
    """A fork copies no threads: kernels that waited for those of the parent would hang."""
    threads(2)
    routed = RoutedImages()
    expected = routed.layer(routed.children).poses.detach()  # the parent's threads have run
    loader = DataLoader(routed, batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60)
    torch.testing.assert_close(torch.cat(list(loader)), expected)
