"""The Triton kernels against eager and the reference. Without a GPU they run as NumPy code: see conftest.py."""

import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import capsella
from capsella.routing import DynamicRouting, EMRouting, Geometry, backends, capsule_votes, record
from capsella.routing.em.moments import WrittenVotes

pytest.importorskip("triton")  # published for Linux alone

from capsella.routing import triton as passes
from capsella.routing import triton_kernels as kernels
from capsella.routing.em.triton import TritonVotes, em_capsule_conv_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROOT = Path(capsella.__file__).parents[1]

# name: (batch, rows, columns, child types, child pose, parent types, parent pose, geometry)
Case = tuple[int, int, int, int, int, int, int, Geometry]
CASES: dict[str, Case] = {
    "3×3 poses, rows left over": (2, 4, 3, 2, 9, 3, 9, Geometry((2, 2), (3, 1), matrix=True)),
    "8-D to 16-D": (2, 1, 2, 3, 8, 5, 16, Geometry((1, 2))),
    "16-D to 16-D": (1, 2, 2, 1, 16, 3, 16, Geometry((1, 2))),
    "4×4 poses, tied": (2, 2, 2, 2, 16, 3, 16, Geometry((2, 2), tied=True, matrix=True)),
    "tied windows": (1, 3, 3, 1, 3, 2, 5, Geometry((2, 2), tied=True)),
    "one child a window": (1, 2, 2, 1, 4, 3, 4, Geometry((1, 1), matrix=True)),
    "gaps between windows": (1, 4, 3, 2, 4, 3, 5, Geometry((1, 1), (3, 2))),
    "one type": (1, 2, 3, 2, 4, 1, 4, Geometry((2, 2), matrix=True)),
}


def inputs(case: Case, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """poses, activations, weight, vote_offset, β_u, β_a, bias, asking for gradients."""
    batch, rows, columns, c_in, p, c_out, d, geometry = case
    tensors = [
        torch.randn(batch, rows, columns, c_in, p),
        torch.rand(batch, rows, columns, c_in),
        0.5 * torch.randn(geometry.weight_shape(c_in, p, c_out, d)),
        torch.randn(rows, columns, d),
        0.3 * torch.randn(c_out),
        torch.randn(c_out),
        torch.randn(c_out, d),
    ]
    return [tensor.to(DEVICE, dtype).requires_grad_() for tensor in tensors]


def run(tensors: list[Tensor], geometry: Geometry, backend: str, routing: Any) -> list[Tensor]:
    """Poses, activations, and the gradients of one fixed random weighting of both."""
    poses, activations, weight, offset, beta_u, beta_a, bias = tensors
    children = poses, activations, weight, geometry, offset
    parameters = {"beta_u": beta_u, "beta_a": beta_a} if isinstance(routing, EMRouting) else {"bias": bias}
    out = replace(routing, backend=backend).capsule_conv(*children, **parameters)
    g = torch.Generator().manual_seed(1)
    weighted = [(torch.randn(x.shape, generator=g, dtype=torch.float64).to(x) * x).sum() for x in out]
    asking = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    return [*out, *torch.autograd.grad(sum(weighted), asking, allow_unused=True, materialize_grads=True)]


def assert_alike(ours: list[Tensor], expected: list[Tensor]) -> None:
    for mine, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


EM = EMRouting(iterations=2, inverse_temperature=0.5, cost_scale=3.0)
DYNAMIC = DynamicRouting(iterations=2, bias=True)


# The interpreter is slow, and both routings share the kernels' geometry: not every case for both.
@pytest.mark.parametrize(
    ("name", "routing"),
    [
        ("3×3 poses, rows left over", EM),
        ("8-D to 16-D", DYNAMIC),
        ("16-D to 16-D", DYNAMIC),
        ("4×4 poses, tied", EM),
        ("tied windows", EM),
        ("tied windows", DYNAMIC),
        ("one child a window", EM),
        ("gaps between windows", DYNAMIC),
        ("one type", EM),
    ],
    ids=str,
)
def test_outputs_and_gradients(name: str, routing: Any) -> None:
    tensors, geometry = inputs(CASES[name]), CASES[name][-1]
    assert_alike(run(tensors, geometry, "triton", routing), run(tensors, geometry, "eager", routing))


@pytest.mark.parametrize(
    "routing",
    [
        EMRouting(inverse_temperature=1.0),
        EMRouting(iterations=1, start="random"),
        EMRouting(iterations=2, competition="types", standardise_costs=True, inverse_temperature=20.0),
        EMRouting(iterations=2, start="random", variance_floor=0.5),
        DynamicRouting(iterations=1),
        DynamicRouting(iterations=3, leaky=True),
    ],
    ids=str,
)
def test_options_against_the_reference(routing: Any) -> None:
    geometry = Geometry((2, 1), (1, 1), matrix=True)
    tensors = inputs((1, 3, 1, 2, 4, 3, 4, geometry))
    assert_alike(run(tensors, geometry, "triton", routing), run(tensors, geometry, "reference", routing))


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("routing", [EM, DYNAMIC], ids=["em", "dynamic"])
def test_small_batches(batch: int, routing: Any) -> None:
    geometry = Geometry((1, 2))
    tensors = inputs((batch, 1, 3, 2, 3, 2, 5, geometry))
    ours = run(tensors, geometry, "triton", routing)
    assert ours[0].shape == (batch, 1, 2, 2, 5)
    assert_alike(ours, run(tensors, geometry, "eager", routing))


@pytest.mark.parametrize(("name", "batch"), [("3×3 poses, rows left over", 3), ("tied windows", 5)])
def test_many_tiles(name: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of windows and of parents, chunks of children and groups, the last of each not full."""
    for constant, value in {"TILE": 16, "CHILDREN": 3, "WEIGHTS": 3, "BLOCKS": 1}.items():
        monkeypatch.setattr(kernels, constant, value)
    _, rows, columns, c_in, p, _, d, geometry = CASES[name]
    tensors = inputs((batch, rows, columns, c_in, p, 5, d, geometry))
    routing = EMRouting(iterations=1)
    assert_alike(run(tensors, geometry, "triton", routing), run(tensors, geometry, "eager", routing))


@pytest.mark.parametrize("learned", [None, False])
def test_without_an_offset_to_learn(learned: bool | None) -> None:
    geometry = Geometry((2, 1))
    tensors: list[Any] = inputs((1, 2, 2, 2, 3, 2, 3, geometry))
    tensors[3] = None if learned is None else tensors[3].detach()
    assert_alike(run(tensors, geometry, "triton", EM), run(tensors, geometry, "eager", EM))


def test_moments_for_any_shares() -> None:
    """EM's shares are a softmax, whose gradient forgives a slip that is the same for all children."""
    case = CASES["one child a window"]
    (poses, activations, weight, offset, *_), geometry = inputs(case), case[-1]
    votes, children, _ = capsule_votes(poses, activations, weight, geometry, offset)
    factors, _ = passes.vote_factors(poses, activations, weight, geometry, offset)
    shares = torch.ones_like(children).unsqueeze(1).repeat(1, 3, 1).requires_grad_()
    both = []
    for V in (TritonVotes(geometry, factors), WrittenVotes(votes.transpose(1, 2))):
        mu, variance = V.moments(shares)
        both.append([mu, variance, *torch.autograd.grad((mu**3).sum() + variance.sum(), [shares, poses, weight])])
    assert_alike(*both)


def error(ours: Tensor, exact: Tensor) -> float:
    """Largest difference, in units of the largest value."""
    return float((ours.detach().double() - exact.detach()).abs().max() / exact.detach().abs().max().clamp(min=1e-6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("routing", [EM, DYNAMIC], ids=["em", "dynamic"])
def test_computes_in_float32(dtype: torch.dtype, routing: Any) -> None:
    case = CASES["8-D to 16-D"]
    tensors, geometry = inputs(case, dtype), case[-1]
    single, double = ([t.detach().to(to).requires_grad_() for t in tensors] for to in (torch.float32, torch.float64))
    exact, eager = run(double, geometry, "eager", routing), run(single, geometry, "eager", routing)
    # Gradients of bfloat16 inputs are rounded to its 8 bits at the very end.
    rounding = 0 if dtype == torch.float32 else 2**-8
    for k, (ours, theirs, truth) in enumerate(
        zip(run(tensors, geometry, "triton", routing), eager, exact, strict=True)
    ):
        assert ours.dtype == (torch.float32 if k < 2 else dtype)
        # Both sum in float32, in different orders, and routing magnifies what they round: either may be the luckier.
        assert error(ours, truth) < max(1e-5, 20 * error(theirs, truth)) + (rounding if k >= 2 else 0)


def test_strided_inputs_and_memory_never_written() -> None:
    case = CASES["4×4 poses, tied"]
    tensors, geometry = inputs(case), case[-1]
    expected = run(tensors, geometry, "triton", EM)
    strided = list(tensors)
    for k in (0, 2):  # as a convolution leaves them
        strided[k] = tensors[k].detach().transpose(1, -1).contiguous().transpose(1, -1).requires_grad_()
        assert not strided[k].is_contiguous()
    torch.use_deterministic_algorithms(True)  # torch.empty is then filled with NaN
    try:
        ours = run(strided, geometry, "triton", EM)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def test_no_votes_are_kept() -> None:
    geometry = Geometry((2, 1))
    tensors = inputs((8, 2, 1, 2, 2, 3, 16, geometry))
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        em_capsule_conv_triton(*tensors[:3], geometry, None, *tensors[4:6], EM)
    votes = 8 * 4 * 3 * 16
    assert kept
    assert max(kept) < votes


@pytest.mark.usefixtures("as_users_call")
def test_operators_keep_torch_s_contract() -> None:
    case = CASES["one child a window"]
    poses, activations, weight, offset, *_ = (tensor.detach() for tensor in inputs(case, torch.float32))
    factors, children = passes.vote_factors(poses, activations, weight, case[-1], offset)
    shares, mu = torch.rand(*children.shape, 3).transpose(1, 2), torch.randn(len(children), 3, 4)
    shares, mu = shares.to(DEVICE), mu.to(DEVICE)
    torch.library.opcheck(passes._vote_sums, (*factors, shares, mu))
    torch.library.opcheck(passes._vote_scores, (*factors, mu, None, None))
    torch.library.opcheck(passes._vote_gradients, (*factors, shares, mu, mu, mu, True))


def test_precision_is_what_torch_allows() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        for allowed, expected in {"highest": "ieee", "high": "tf32x3"}.items():
            torch.set_float32_matmul_precision(allowed)
            assert kernels.precision_of(torch.float32, short=False) == expected
            assert kernels.precision_of(torch.float64, short=False) == "ieee"
            assert kernels.precision_of(torch.float32, short=True) == "tf32"
    finally:
        torch.set_float32_matmul_precision(before)


def test_needs_a_gpu_and_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = Geometry((1, 1))
    tensors = [tensor.cpu() for tensor in inputs((1, 1, 1, 1, 2, 1, 2, geometry))]
    monkeypatch.setattr(passes, "INTERPRETED", False)
    with pytest.raises(ValueError, match=r"'triton' needs poses on a CUDA device, got cpu; move model"):
        run(tensors, geometry, "triton", DYNAMIC)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match=r"needs the package triton.*pip install 'capsella\[triton\]'"):
        runpy.run_path(kernels.__file__)


# Triton's compiler refuses much that the interpreter takes, and needs no GPU to say so.
COMPILE = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from capsella.routing import triton_kernels as kernels

def empty(*shape): return torch.empty(shape, device="meta")
constants = kernels.constants_of(empty(8, 5, 5, 3, 9), empty(3, 3, 3, 5, 3, 3), empty(9, 9), False)
constants |= dict(OFFSET=True, CENTRED=True, CHUNK=64, OFFSET_WANTED=True, PER_PROGRAM=4, GROUP=8)
for kernel in (kernels.sums_kernel, kernels.scores_kernel, kernels.gradients_kernel):
    types = {"slots": "*i32", "area": "i32", "windows": "i32"}
    types = {name: "constexpr" if name.isupper() else types.get(name, "*fp32") for name in kernel.arg_names}
    values = {name: constants[name] for name in types if name.isupper()}
    triton.compile(ASTSource(kernel, types, values), target=GPUTarget("cuda", 90, 32))
    print(kernel.fn.__name__)
"""


def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.stdout.split() == ["sums_kernel", "scores_kernel", "gradients_kernel"], run.stderr


# As in test_compile.py: in its own process, with the backend that traces and compiles nothing.
TRACE = """
import torch
from capsella.routing import DynamicRouting, EMRouting, Geometry
from capsella.routing.dynamic.triton import dynamic_capsule_conv_triton
from capsella.routing.em.triton import em_capsule_conv_triton

geometry = Geometry((1, 2))
poses, activations, beta = torch.randn(2, 1, 3, 2, 3), torch.rand(2, 1, 3, 2), torch.zeros(3)
weight = torch.randn(geometry.weight_shape(2, 3, 3, 5), requires_grad=True)
children = poses, activations, weight, geometry, None

def em(): return em_capsule_conv_triton(*children, beta, beta, EMRouting(iterations=2))
def dynamic(): return dynamic_capsule_conv_triton(*children, None, DynamicRouting(iterations=2))

for route in (em, dynamic):
    results = []
    for run in (route, torch.compile(route, fullgraph=True, backend="aot_eager")):
        out = run()
        results.append([*out, *torch.autograd.grad(out.poses.square().sum() + out.activations.sum(), weight)])
    torch.testing.assert_close(*results)
    print(route.__name__)
"""


@pytest.mark.skipif(not kernels.INTERPRETED, reason="the script is for a CPU")
def test_torch_compile_takes_one_graph() -> None:
    run = subprocess.run([sys.executable, "-c", TRACE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["em", "dynamic"], run.stderr


@pytest.mark.parametrize("routing", [EM, DYNAMIC], ids=["em", "dynamic"])
def test_recording_still_gives_couplings(routing: Any) -> None:
    geometry = Geometry((1, 2))
    tensors = inputs((1, 1, 3, 2, 4, 2, 4, geometry))
    with record() as traces:
        recorded = run(tensors, geometry, "triton", routing)
    assert len(traces[0].couplings) == 2
    assert_alike(run(tensors, geometry, "triton", routing), recorded)


def test_asking_for_it_where_it_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = Geometry((1, 2))
    tensors = [tensor.cpu() for tensor in inputs((1, 1, 3, 2, 4, 2, 4, geometry))]
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(
        ValueError, match=r"'triton' cannot run here: it runs on CUDA devices, and the poses are on cpu"
    ):
        run(tensors, geometry, "triton", EM)
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"'triton' cannot run here: it needs the package triton"):
        run(tensors, geometry, "triton", DYNAMIC)
