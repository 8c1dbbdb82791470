"""The C++ kernels against eager float64: as near as eager float32 is, for every instruction set of this processor."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from capsella import _native
from capsella.layers import CapsuleConv2d
from capsella.routing import CapsuleConv, EMRouting, Geometry, record
from capsella.routing.mixture import first_arguments
from capsella.types import Capsules
from tests.routing.helpers import CONV, LAYERS, Layer, asking, error, gradients, route, same_bits

pytestmark = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))

OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one iteration": {"iterations": 1},
    "scaled": {"cost_scale": 50.0, "inverse_temperature": 0.1, "iterations": 2},
    "standardised": {"standardise_costs": True, "inverse_temperature": 20.0},
    "random start": {"start": "random", "cost_scale": 50.0, "inverse_temperature": 0.1, "iterations": 2},
    "soft first": {"early_sharpness": 0.2, "iterations": 4, "inverse_temperature": 0.1},
    "high floor": {"variance_floor": 0.5, "iterations": 4, "inverse_temperature": 0.1},
}


def inputs(name: str) -> dict[str, Tensor]:
    """Of the convolution, β_u and β_a, in float64."""
    c_out, _ = LAYERS[name].parents
    g = torch.Generator().manual_seed(0)
    tensors = LAYERS[name].tensors(scale=0.5, generator=g)
    tensors["beta_u"] = 0.3 * torch.randn(c_out, generator=g, dtype=torch.float64)
    tensors["beta_a"] = torch.randn(c_out, generator=g, dtype=torch.float64)
    return tensors


def run(name: str, tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32, **options: Any) -> list[Tensor]:
    """Poses, activations, and the gradients of one fixed random weighting of both."""
    mine = asking(tensors, dtype, without=["vote_offset"])
    out = route(EMRouting(**options), LAYERS[name].geometry, mine)
    return [*out, *gradients(out, [tensor for tensor in mine.values() if tensor.requires_grad])]


@cache
def by_eager(name: str, options: str, competition: str) -> tuple[list[Tensor], ...]:
    """In float64 and in float32. Eager knows no instruction sets: it computes once for all of them."""
    settings: dict[str, Any] = {**OPTIONS[options], "competition": competition, "backend": "eager"}
    return tuple(run(name, inputs(name), dtype, **settings) for dtype in (torch.float64, torch.float32))


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("competition", ["all", "types"])
def test_outputs_and_gradients(name: str, options: str, competition: str) -> None:
    exact, eager = by_eager(name, options, competition)
    native = run(name, inputs(name), backend="native", competition=competition, **OPTIONS[options])
    for ours, theirs, truth in zip(native, eager, exact, strict=True):
        assert ours.shape == truth.shape
        # Both sum in float32, in different orders, and EM magnifies what they round: either may be the luckier one.
        assert error(ours, truth) < max(1e-5, 20 * error(theirs, truth))


@pytest.mark.parametrize("competition", ["all", "types"])
def test_the_same_bits_with_any_number_of_threads(threads: Callable[[int], None], competition: str) -> None:
    for name in ("4×4 poses", "tied", "many images"):
        tensors = inputs(name)
        results = []
        for count in (1, 2, 5, 2):
            threads(count)
            results.append(run(name, tensors, backend="native", competition=competition))
        for other in results[1:]:
            assert same_bits(other, results[0])


def test_no_value_comes_from_memory_never_written(request: pytest.FixtureRequest) -> None:
    expected = run("4×4 poses", inputs("4×4 poses"), backend="native")
    request.getfixturevalue("nan_in_new_memory")
    assert same_bits(run("4×4 poses", inputs("4×4 poses"), backend="native"), expected)


def test_strided_inputs() -> None:
    tensors = inputs("4×4 poses")
    strided = dict(tensors)
    strided["poses"] = tensors["poses"].permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)  # as convolutions do
    strided["weight"] = tensors["weight"].transpose(0, -1).contiguous().transpose(0, -1)
    assert not strided["poses"].is_contiguous()
    assert not strided["weight"].is_contiguous()
    assert same_bits(*(run("4×4 poses", each, backend="native") for each in (strided, tensors)))


def test_auto_is_native_for_float32_alone() -> None:
    tensors = inputs("4×4 poses")
    auto, native, eager = (run("4×4 poses", tensors, backend=backend) for backend in ("auto", "native", "eager"))
    assert same_bits(auto, native)
    assert not same_bits(native, eager)
    assert same_bits(*(run("4×4 poses", tensors, torch.float64, backend=backend) for backend in ("auto", "eager")))


def test_recording_keeps_couplings_whatever_the_backend() -> None:
    layer = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=EMRouting(backend="native"))
    parents = Capsules(torch.randn(1, 3, 3, 2, 4), torch.rand(1, 3, 3, 2))
    expected = layer(parents)
    with record() as traces:
        recorded = layer(parents)
    assert len(traces[0].couplings) == 3
    torch.testing.assert_close(recorded.poses, expected.poses)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float64}, "takes float32, and the poses are torch.float64"),
        ({"device": "meta"}, "runs on the CPU, and the poses are on meta"),
    ],
)
def test_asking_for_what_cannot_run(change: dict[str, Any], message: str) -> None:
    layer = Layer(1, (3, 3), Geometry((2, 2), matrix=True), (2, 4), (3, 4))
    tensors = {**layer.tensors(), "beta_u": torch.zeros(3), "beta_a": torch.zeros(3)}
    tensors = {name: tensor.float().to(**change) for name, tensor in tensors.items()}
    with pytest.raises(ValueError, match=message):
        route(EMRouting(backend="native"), layer.geometry, tensors)


def test_poses_too_large_and_offsets_to_be_learned_are_left_to_eager() -> None:
    routing = EMRouting(iterations=1)
    for p, offset in ((17 * 17, None), (4, torch.zeros(3, 3, 4, requires_grad=True))):
        layer = Layer(1, (3, 3), Geometry((2, 2), matrix=True), (1, p), (2, p))
        tensors = {name: tensor.float() for name, tensor in layer.tensors().items()}
        tensors |= {"vote_offset": offset, "beta_u": torch.zeros(2), "beta_a": torch.zeros(2)}
        assert route(routing, layer.geometry, tensors)[0].isfinite().all()
        with pytest.raises(ValueError, match=r"takes poses of up to 256|takes vote_offset as a constant"):
            route(EMRouting(backend="native"), layer.geometry, tensors)


def test_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "UNAVAILABLE", "not built")
    tensors = inputs("2×2 poses")
    assert same_bits(*(run("2×2 poses", tensors, backend=backend) for backend in ("auto", "eager")))
    with pytest.raises(ValueError, match="'native' cannot run here: not built"):
        run("2×2 poses", tensors, backend="native")


@pytest.mark.usefixtures("as_users_call")
def test_the_operator_keeps_torch_s_contract() -> None:
    from capsella.routing.em.native import Call, _em_capsule_conv

    for name, everywhere in (("4×4 poses", True), ("tied", False)):
        tensors = asking(inputs(name), torch.float32, without=["vote_offset"])
        conv = CapsuleConv(**{key: tensors[key] for key in CONV}, geometry=LAYERS[name].geometry)
        call = Call(
            **first_arguments(conv, torch.stack([tensors["beta_u"], tensors["beta_a"]])),
            inverse_temperatures=[0.1, 0.2],
            sharpness=[0.5, 1.0],
            variance_floor=1e-4,
            cost_scale=0.0,
            standardise=False,
            compete_everywhere=everywhere,
            bfloat16_votes=everywhere,
        )
        torch.library.opcheck(_em_capsule_conv, tuple(call))


class Routed(Dataset[Tensor]):
    """Images routed in the worker process that loads them."""

    def __init__(self) -> None:
        self.layer = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=EMRouting(backend="native"))
        self.children = Capsules(torch.randn(4, 3, 3, 2, 4), torch.rand(4, 3, 3, 2))

    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> Tensor:
        with torch.no_grad():
            poses: Tensor = self.layer(Capsules(self.children.poses[k : k + 1], self.children.activations[k : k + 1]))[
                0
            ]
        return poses[0]


def test_forked_workers_live(threads: Callable[[int], None]) -> None:
    """A fork copies no threads: kernels that waited for those of the parent would hang."""
    threads(2)
    routed = Routed()
    expected = routed.layer(routed.children).poses.detach()  # the parent's threads have run
    loader = DataLoader(routed, batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60)
    torch.testing.assert_close(torch.cat(list(loader)), expected)
