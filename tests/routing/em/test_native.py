"""The C++ kernels against eager float64: as near as eager float32 is, for every instruction set of this processor."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from capsella import _native
from capsella.layers import CapsuleConv2d
from capsella.routing import EMRouting, Geometry, record
from capsella.routing.native import conv_shape
from capsella.types import Capsules

pytestmark = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))

# name: (batch, rows, columns, child types, child pose, parent types, parent pose, geometry)
Case = tuple[int, int, int, int, int, int, int, Geometry]
CASES: dict[str, Case] = {
    "4×4 poses": (2, 5, 6, 3, 16, 5, 16, Geometry((3, 3), (2, 1), matrix=True)),
    "more types than lanes": (1, 4, 4, 2, 16, 33, 16, Geometry((3, 3), matrix=True)),
    "3×3 poses": (2, 4, 4, 2, 9, 17, 9, Geometry((3, 2), matrix=True)),
    "2×2 poses": (2, 4, 3, 5, 4, 3, 4, Geometry((2, 2), (2, 1), matrix=True)),
    "16-D vectors": (2, 3, 3, 2, 16, 6, 16, Geometry((2, 2))),
    "5-D to 7-D": (2, 3, 4, 3, 5, 9, 7, Geometry((2, 3))),
    "tied": (3, 4, 4, 4, 16, 5, 16, Geometry((4, 4), tied=True, matrix=True)),
    "tied windows": (2, 4, 4, 3, 16, 5, 16, Geometry((3, 3), tied=True, matrix=True)),
    "one child a window": (1, 4, 5, 1, 16, 3, 16, Geometry((1, 1), (1, 2), matrix=True)),
    "gaps between windows": (2, 7, 5, 2, 9, 4, 9, Geometry((1, 2), (3, 3), matrix=True)),
    "one type": (2, 4, 4, 1, 16, 1, 16, Geometry((2, 2), matrix=True)),
    "many images": (40, 2, 2, 2, 4, 3, 4, Geometry((1, 1), matrix=True)),
    "no image": (0, 4, 4, 2, 16, 3, 16, Geometry((3, 3), matrix=True)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one iteration": {"iterations": 1},
    "scaled": {"cost_scale": 50.0, "inverse_temperature": 0.1, "iterations": 2},
    "standardised": {"standardise_costs": True, "inverse_temperature": 20.0},
    "random start": {"start": "random", "cost_scale": 50.0, "inverse_temperature": 0.1, "iterations": 2},
    "high floor": {"variance_floor": 0.5, "iterations": 4, "inverse_temperature": 0.1},
}


def children(case: Case, seed: int = 0) -> list[Tensor]:
    """poses, activations, weight, vote_offset, β_u, β_a in float64."""
    batch, rows, columns, c_in, p, c_out, d, geometry = case
    g = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    return [
        randn(batch, rows, columns, c_in, p),
        torch.rand(batch, rows, columns, c_in, generator=g, dtype=torch.float64),
        0.5 * randn(*geometry.weight_shape(c_in, p, c_out, d)),
        randn(rows, columns, d),
        0.3 * randn(c_out),
        randn(c_out),
    ]


def run(tensors: list[Tensor], geometry: Geometry, dtype: torch.dtype = torch.float32, **options: Any) -> list[Tensor]:
    """Poses, activations, and the gradients of one fixed random weighting of both."""
    poses, activations, weight, offset, beta_u, beta_a = (tensor.detach().to(dtype) for tensor in tensors)
    asking = [tensor.requires_grad_() for tensor in (poses, activations, weight, beta_u, beta_a)]
    out = EMRouting(**options).capsule_conv(poses, activations, weight, geometry, offset, beta_u=beta_u, beta_a=beta_a)
    g = torch.Generator().manual_seed(1)
    weighted = [(torch.randn(x.shape, generator=g, dtype=torch.float64).to(dtype) * x).sum() for x in out]
    return [*out, *torch.autograd.grad(sum(weighted), asking)]


def error(ours: Tensor, exact: Tensor) -> float:
    """Largest difference, in units of the largest value."""
    if not exact.numel():
        return 0.0
    return float((ours.detach().double() - exact.detach()).abs().max() / exact.detach().abs().max().clamp(min=1e-6))


@pytest.fixture(params=_native.kernels.instruction_sets() if _native.kernels else [])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    best = _native.kernels.instruction_set()
    _native.kernels.use(request.param)
    yield request.param
    _native.kernels.use(best)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("competition", ["all", "types"])
def test_outputs_and_gradients(name: str, options: str, competition: str) -> None:
    tensors, geometry = children(CASES[name]), CASES[name][-1]
    settings = {**OPTIONS[options], "competition": competition}
    exact, eager = (
        run(tensors, geometry, dtype, backend="eager", **settings) for dtype in (torch.float64, torch.float32)
    )
    native = run(tensors, geometry, backend="native", **settings)
    for ours, theirs, truth in zip(native, eager, exact, strict=True):
        assert ours.shape == truth.shape
        # Both sum in float32, in different orders, and EM magnifies what they round: either may be the luckier one.
        assert error(ours, truth) < max(1e-5, 20 * error(theirs, truth))


@pytest.mark.parametrize("competition", ["all", "types"])
def test_the_same_bits_with_any_number_of_threads(threads: Callable[[int], None], competition: str) -> None:
    for name in ("4×4 poses", "tied", "many images"):
        tensors, geometry = children(CASES[name]), CASES[name][-1]
        results = []
        for count in (1, 2, 5, 2):
            threads(count)
            results.append(run(tensors, geometry, backend="native", competition=competition))
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_no_value_comes_from_memory_never_written() -> None:
    case = CASES["4×4 poses"]
    tensors, geometry = children(case), case[-1]
    expected = run(tensors, geometry, backend="native")
    torch.use_deterministic_algorithms(True)  # torch.empty is then filled with NaN
    try:
        poisoned = run(tensors, geometry, backend="native")
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(expected, poisoned, strict=True))


def test_strided_inputs() -> None:
    case = CASES["4×4 poses"]
    tensors, geometry = children(case), case[-1]
    expected = run(tensors, geometry, backend="native")
    poses = tensors[0].permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)  # as a convolution leaves them
    weight = tensors[2].transpose(0, -1).contiguous().transpose(0, -1)
    assert not poses.is_contiguous()
    assert not weight.is_contiguous()
    strided = run([poses, tensors[1], weight, *tensors[3:]], geometry, backend="native")
    assert all(torch.equal(a, b) for a, b in zip(expected, strided, strict=True))


def test_auto_is_native_for_float32_alone() -> None:
    case = CASES["4×4 poses"]
    tensors, geometry = children(case), case[-1]
    auto, native, eager = (run(tensors, geometry, backend=backend) for backend in ("auto", "native", "eager"))
    assert all(torch.equal(a, b) for a, b in zip(auto, native, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(native, eager, strict=True))
    double = [run(tensors, geometry, torch.float64, backend=backend) for backend in ("auto", "eager")]
    assert all(torch.equal(a, b) for a, b in zip(*double, strict=True))


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
    geometry = Geometry((2, 2), matrix=True)
    poses, activations = torch.zeros(1, 3, 3, 2, 4, **change), torch.zeros(1, 3, 3, 2, **change)
    weight = torch.zeros(geometry.weight_shape(2, 4, 3, 4), **change)
    betas = {"beta_u": torch.zeros(3, **change), "beta_a": torch.zeros(3, **change)}
    with pytest.raises(ValueError, match=message):
        EMRouting(backend="native").capsule_conv(poses, activations, weight, geometry, **betas)


def test_poses_too_large_and_offsets_to_be_learned_are_left_to_eager() -> None:
    routing = EMRouting(iterations=1)
    for p, offset in ((17 * 17, None), (4, torch.zeros(3, 3, 4, requires_grad=True))):
        geometry = Geometry((2, 2), matrix=True)
        inputs = torch.randn(1, 3, 3, 1, p), torch.rand(1, 3, 3, 1), torch.randn(geometry.weight_shape(1, p, 2, p))
        betas = {"beta_u": torch.zeros(2), "beta_a": torch.zeros(2)}
        assert routing.capsule_conv(*inputs, geometry, offset, **betas).poses.isfinite().all()
        with pytest.raises(ValueError, match=r"takes poses of up to 256|takes vote_offset as a constant"):
            EMRouting(backend="native").capsule_conv(*inputs, geometry, offset, **betas)


def test_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "UNAVAILABLE", "not built")
    case = CASES["2×2 poses"]
    tensors, geometry = children(case), case[-1]
    for auto, eager in zip(*(run(tensors, geometry, backend=backend) for backend in ("auto", "eager")), strict=True):
        assert torch.equal(auto, eager)
    with pytest.raises(ValueError, match="'native' cannot run here: not built"):
        run(tensors, geometry, backend="native")


@pytest.mark.usefixtures("as_users_call")
def test_the_operator_keeps_torch_s_contract() -> None:
    from capsella.routing.em.native import _em_capsule_conv

    for name, everywhere in (("4×4 poses", True), ("tied", False)):
        case = CASES[name]
        poses, activations, weight, offset, beta_u, beta_a = (tensor.float() for tensor in children(case))
        inputs = [tensor.requires_grad_() for tensor in (poses, activations, weight, beta_u, beta_a)]
        geometry = case[-1]
        shape = conv_shape(poses, weight, geometry)
        arguments = (
            *inputs[:3],
            offset,
            *inputs[3:],
            None,
            shape,
            geometry.tied,
            [0.1, 0.2],
            1e-4,
            0.0,
            False,
            everywhere,
        )
        torch.library.opcheck(_em_capsule_conv, arguments)


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
