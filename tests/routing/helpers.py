"""Shared by the routing tests: layers and their random inputs, kernel cases, gradients, and comparisons."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from capsella import _native
from capsella.routing import Geometry, Routing, RoutingInputs

needs_kernels = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))
INSTRUCTION_SETS = _native.kernels.instruction_sets() if _native.kernels else ["none"]  # the best one first


def kernel_cases(options: Sequence[str], layers: Sequence[str]) -> Any:
    """Parametrise a test by `instruction_set`, `options` and `name`, a layer's.

    Each option meets two layers or more and each layer two options or more on the best instruction set. On the others,
    each layer meets the first option. The rest of the full product is slow.
    """
    rounds = 2 * max(len(options), len(layers))
    pairs = {(options[k % len(options)], layers[k % len(layers)]) for k in range(rounds)}
    quick = {(INSTRUCTION_SETS[0], *pair) for pair in pairs} | set(product(INSTRUCTION_SETS, options[:1], layers))
    cases = [
        pytest.param(*case, marks=() if case in quick else pytest.mark.slow)
        for case in product(INSTRUCTION_SETS, options, layers)
    ]
    return pytest.mark.parametrize(("instruction_set", "options", "name"), cases, indirect=["instruction_set"])


def on_each_set() -> Any:
    """Parametrise a test by every instruction set."""
    return pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS, indirect=True)


class Layer(NamedTuple):
    """A capsule layer: (types, pose elements) of its children, which stand on a grid, and of its parents."""

    batch: int
    grid: tuple[int, int]
    geometry: Geometry
    children: tuple[int, int]
    parents: tuple[int, int]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of poses, activations, weight and vote_offset."""
        (c_in, p), (c_out, d) = self.children, self.parents
        return {
            "poses": (self.batch, *self.grid, c_in, p),
            "activations": (self.batch, *self.grid, c_in),
            "weight": self.geometry.weight_shape(c_in, p, c_out, d),
            "vote_offset": (*self.grid, d),
        }

    def tensors(self, scale: float = 1.0, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Random ones in float64; the weight has this standard deviation."""
        tensors = {}
        for name, shape in self.shapes().items():
            draw = torch.rand if name == "activations" else torch.randn
            tensors[name] = draw(shape, generator=generator, dtype=torch.float64)
        tensors["weight"] *= scale
        return tensors


# Every path of the kernels that fit a mixture of Gaussians.
LAYERS = {
    "4×4 poses": Layer(2, (5, 6), Geometry((3, 3), (2, 1), matrix=True), (3, 16), (5, 16)),
    "more types than lanes": Layer(1, (4, 4), Geometry((3, 3), matrix=True), (2, 16), (33, 16)),
    "3×3 poses": Layer(2, (4, 4), Geometry((3, 2), matrix=True), (2, 9), (17, 9)),
    "2×2 poses": Layer(2, (4, 3), Geometry((2, 2), (2, 1), matrix=True), (5, 4), (3, 4)),
    "16-D vectors": Layer(2, (3, 3), Geometry((2, 2)), (2, 16), (6, 16)),
    "5-D to 7-D": Layer(2, (3, 4), Geometry((2, 3)), (3, 5), (9, 7)),
    "tied": Layer(3, (4, 4), Geometry((4, 4), tied=True, matrix=True), (4, 16), (5, 16)),
    "tied windows": Layer(2, (4, 4), Geometry((3, 3), tied=True, matrix=True), (3, 16), (5, 16)),
    "one child a window": Layer(1, (4, 5), Geometry((1, 1), (1, 2), matrix=True), (1, 16), (3, 16)),
    "gaps between windows": Layer(2, (7, 5), Geometry((1, 2), (3, 3), matrix=True), (2, 9), (4, 9)),
    "one type": Layer(2, (4, 4), Geometry((2, 2), matrix=True), (1, 16), (1, 16)),
    "many images": Layer(40, (2, 2), Geometry((1, 1), matrix=True), (2, 4), (3, 4)),
    "no image": Layer(0, (4, 4), Geometry((3, 3), matrix=True), (2, 16), (3, 16)),
}

CONV = ("poses", "activations", "weight", "vote_offset")


def route(routing: Routing, geometry: Geometry, tensors: dict[str, Any]) -> list[Tensor]:
    """Poses and activations of the parents; tensors are those of the convolution, and the routing's parameters."""
    of_conv = {name: tensors[name] for name in CONV if name in tensors}
    parameters = {name: tensor for name, tensor in tensors.items() if name not in CONV}
    return list(routing.route_windows(RoutingInputs(**of_conv, geometry=geometry), **parameters))


def learned(routing: Routing, layer: Layer) -> dict[str, Tensor]:
    """Random tensors of the convolution, and of what the layer learns for its routing, in float64."""
    generator = torch.Generator().manual_seed(0)
    tensors = layer.tensors(scale=0.5, generator=generator)
    (c_in, p), (c_out, d) = layer.children, layer.parents
    children = layer.geometry.kernel[0] * layer.geometry.kernel[1] * c_in
    for key, shape in routing.parameter_shapes(c_out, d, children, p).items():
        tensors[key] = 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return tensors


def with_gradients(routing: Routing, layer: Layer, tensors: dict[str, Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Poses, activations, and the gradients of one fixed random weighting of both."""
    mine = asking(tensors, dtype, without=["vote_offset"])
    out = route(routing, layer.geometry, mine)
    return [*out, *gradients(out, [tensor for tensor in mine.values() if tensor.requires_grad])]


def asking(tensors: dict[str, Tensor], dtype: Any = None, without: Iterable[str] = ()) -> dict[str, Tensor]:
    """Copies, of another type where one is given, which ask for gradients but for those named."""
    return {
        name: tensor.detach().to(dtype or tensor.dtype).requires_grad_(name not in without)
        for name, tensor in tensors.items()
    }


def gradients(outputs: Iterable[Tensor], inputs: Sequence[Tensor], unused: bool = False) -> tuple[Tensor, ...]:
    """Of one fixed random weighting of all outputs; `unused`: zeros for inputs that no output depends on."""
    generator, outputs = torch.Generator().manual_seed(1), list(outputs)
    weights = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out) for out in outputs]
    total = torch.stack([(weight * out).sum() for weight, out in zip(weights, outputs, strict=True)]).sum()
    return torch.autograd.grad(total, inputs, allow_unused=unused, materialize_grads=unused)


def assert_close(ours: Iterable[Tensor], expected: Iterable[Tensor], rtol: float = 1e-6, atol: float = 1e-8) -> None:
    for mine, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol)


def same_bits(ours: Iterable[Tensor], expected: Iterable[Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(ours, expected, strict=True))


def error(ours: Tensor, exact: Tensor) -> float:
    """Largest difference, in units of the largest value."""
    if not exact.numel():
        return 0.0
    return float((ours.detach().double() - exact.detach()).abs().max() / exact.detach().abs().max().clamp(min=1e-6))
