"""The Triton kernels, off by default, against eager and the reference. Without a GPU they run as NumPy code."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import capsella
from capsella.routing import DynamicRouting, EMRouting, Geometry

pytest.importorskip("triton")  # published for Linux alone

from capsella.routing.triton import kernels
from tests.routing.helpers import Layer, asking, assert_close, error, gradients, route

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROOT = Path(capsella.__file__).parents[1]

LAYERS = {
    "3×3 poses, rows left over": Layer(2, (4, 3), Geometry((2, 2), (3, 1), matrix=True), (2, 9), (3, 9)),
    "8-D to 16-D": Layer(2, (1, 2), Geometry((1, 2)), (3, 8), (5, 16)),
    "4×4 poses, tied": Layer(2, (2, 2), Geometry((2, 2), tied=True, matrix=True), (2, 16), (3, 16)),
    "tied windows": Layer(1, (3, 3), Geometry((2, 2), tied=True), (1, 3), (2, 5)),
    "one child a window": Layer(1, (2, 2), Geometry((1, 1), matrix=True), (1, 4), (3, 4)),
    "gaps between windows": Layer(1, (4, 3), Geometry((1, 1), (3, 2)), (2, 4), (3, 5)),
    "one type": Layer(1, (2, 3), Geometry((2, 2), matrix=True), (2, 4), (1, 4)),
}


def inputs(layer: Layer, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Of the convolution, β_u, β_a and bias; all but the offset ask for gradients."""
    c_out, d = layer.parents
    tensors = layer.tensors(scale=0.5)
    tensors |= {"beta_u": 0.3 * torch.randn(c_out), "beta_a": torch.randn(c_out), "bias": torch.randn(c_out, d)}
    return {name: tensor.to(DEVICE, dtype).requires_grad_(name != "vote_offset") for name, tensor in tensors.items()}


def run(layer: Layer, tensors: dict[str, Any], backend: str, routing: Any) -> list[Tensor]:
    """Poses, activations, and the gradients of one fixed random weighting of both."""
    others = ("bias",) if isinstance(routing, EMRouting) else ("beta_u", "beta_a")
    mine = {name: tensor for name, tensor in tensors.items() if name not in others}
    out = route(replace(routing, backend=backend), layer.geometry, mine)
    asked = [tensor for tensor in tensors.values() if tensor is not None and tensor.requires_grad]
    return [*out, *gradients(out, asked, unused=True)]


EM = EMRouting(iterations=2, inverse_temperature=0.5, cost_scale=3.0)
DYNAMIC = DynamicRouting(iterations=2, bias=True)


# The interpreter is slow, and both routings share the kernels' geometry: not every case for both.
@pytest.mark.parametrize(
    ("name", "routing"),
    [
        ("3×3 poses, rows left over", EM),
        ("8-D to 16-D", DYNAMIC),
        ("4×4 poses, tied", EM),
        ("tied windows", DYNAMIC),
        ("one child a window", EM),
        ("gaps between windows", DYNAMIC),
        ("one type", EM),
    ],
    ids=str,
)
def test_outputs_and_gradients(name: str, routing: Any) -> None:
    layer, tensors = LAYERS[name], inputs(LAYERS[name])
    assert_close(run(layer, tensors, "triton", routing), run(layer, tensors, "eager", routing))


@pytest.mark.parametrize(("name", "batch"), [("3×3 poses, rows left over", 3), ("tied windows", 5)])
def test_many_tiles(name: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of windows and of parents, chunks of children and groups, the last of each not full."""
    for constant, value in {"TILE": 16, "CHILDREN": 3, "WEIGHTS": 3, "BLOCKS": 1}.items():
        monkeypatch.setattr(kernels, constant, value)
    layer = LAYERS[name]._replace(batch=batch, parents=(5, LAYERS[name].parents[1]))
    tensors, routing = inputs(layer), EMRouting(iterations=1)
    assert_close(run(layer, tensors, "triton", routing), run(layer, tensors, "eager", routing))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("routing", [EM, DYNAMIC], ids=["em", "dynamic"])
def test_computes_in_float32(dtype: torch.dtype, routing: Any) -> None:
    layer = LAYERS["8-D to 16-D"]
    tensors = inputs(layer, dtype)
    exact, eager = (
        run(layer, asking(tensors, to, ["vote_offset"]), "eager", routing) for to in (torch.float64, torch.float32)
    )
    # Gradients of bfloat16 inputs are rounded to its 8 bits at the very end.
    rounding = 0 if dtype == torch.float32 else 2**-8
    for k, (ours, theirs, truth) in enumerate(zip(run(layer, tensors, "triton", routing), eager, exact, strict=True)):
        assert ours.dtype == (torch.float32 if k < 2 else dtype)
        # Both sum in float32, in different orders, and routing magnifies what they round: either may be the luckier.
        assert error(ours, truth) < max(1e-5, 20 * error(theirs, truth)) + (rounding if k >= 2 else 0)


# Triton's compiler refuses much that the interpreter takes, and needs no GPU to say so.
COMPILE = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from capsella.routing.triton import kernels

def empty(*shape): return torch.empty(shape, device="meta")
constants = kernels.constants_of(empty(8, 5, 5, 3, 9), empty(3, 3, 3, 5, 3, 3), empty(9, 9))
constants |= dict(OFFSET=True, CENTRED=True, CHUNK=64, PER_PROGRAM=4, GROUP=8)
for kernel in (kernels.sums_kernel, kernels.scores_kernel, kernels.gradients_kernel):
    types = {"slots": "*i32", "area": "i32", "windows": "i32"}
    types = {name: "constexpr" if name.isupper() else types.get(name, "*fp32") for name in kernel.arg_names}
    values = {name: constants[name] for name in types if name.isupper()}
    triton.compile(ASTSource(kernel, types, values), target=GPUTarget("cuda", 90, 32))
    print(kernel.fn.__name__)
"""


@pytest.mark.slow
def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.stdout.split() == ["sums_kernel", "scores_kernel", "gradients_kernel"], run.stderr
