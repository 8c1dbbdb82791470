"""The C++ kernels of votes against eager float64: as near as eager float32 is, for every instruction set here."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella.routing import ROUTINGS, Routing, RoutingInputs, capsule_votes
from capsella.routing.votes import DenseVotes, FusedVotes, Votes
from tests.routing.helpers import LAYERS, asking, error, gradients, kernel_cases, needs_kernels, on_each_set, same_bits

pytestmark = needs_kernels

# Routings that are made of both products, with options.
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "self": ("self", {}),
    "self-attention": ("self_attention", {}),
    "without prior": ("self_attention", {"prior": False}),
    "inverted attention": ("inverted_attention", {}),
    "three rounds": ("inverted_attention", {"iterations": 3}),
    "one round": ("inverted_attention", {"iterations": 1}),
}
COPIED = "many images"  # more than there are copies of the gradient of a weight


def inputs(name: str, options: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of the convolution, and the routing's parameters, in float64."""
    generator, layer = torch.Generator().manual_seed(0), LAYERS[name]
    tensors = layer.tensors(scale=0.5, generator=generator)
    (c_in, p), (c_out, d) = layer.children, layer.parents
    children = layer.geometry.kernel[0] * layer.geometry.kernel[1] * c_in
    shapes = routing_of(options, "auto").parameter_shapes(c_out, d, children, p)
    draws = {key: torch.randn(shape, generator=generator, dtype=torch.float64) for key, shape in shapes.items()}
    return tensors, {key: 0.3 * draw for key, draw in draws.items()}


def routing_of(options: str, backend: str) -> Routing:
    name, settings = OPTIONS[options]
    return ROUTINGS[name](**settings, backend=backend)


def run(name: str, options: str, backend: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Poses, activations, and the gradients of one fixed random weighting of both."""
    tensors, parameters = inputs(name, options)
    mine, learned = asking(tensors, dtype, without=["vote_offset"]), asking(parameters, dtype)
    conv = RoutingInputs(**mine, geometry=LAYERS[name].geometry)
    out = list(routing_of(options, backend).route_windows(conv, **learned))
    asked = [tensor for tensor in (*mine.values(), *learned.values()) if tensor.requires_grad]
    return [*out, *gradients([one for one in out if one.requires_grad], asked, unused=True)]


@cache
def by_eager(name: str, options: str) -> tuple[list[Tensor], ...]:
    """In float64 and in float32. Eager knows no instruction sets: it computes once for all of them."""
    return tuple(run(name, options, "eager", dtype) for dtype in (torch.float64, torch.float32))


@kernel_cases(list(OPTIONS), list(LAYERS))
@pytest.mark.usefixtures("instruction_set", "nan_in_new_memory")
def test_outputs_and_gradients(name: str, options: str) -> None:
    exact, eager = by_eager(name, options)
    for ours, theirs, truth in zip(run(name, options, "native"), eager, exact, strict=True):
        assert ours.shape == truth.shape
        assert error(ours, truth) < max(1e-5, 20 * error(theirs, truth))


def products(name: str, make: Callable[[RoutingInputs], Votes], dtype: torch.dtype) -> list[Tensor]:
    """Sums and agreements, and their gradients."""
    tensors = asking(LAYERS[name].tensors(generator=torch.Generator().manual_seed(0)), dtype, without=["vote_offset"])
    conv = RoutingInputs(**tensors, geometry=LAYERS[name].geometry)
    sizes, generator = conv.shape, torch.Generator().manual_seed(1)
    weights, poses = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((sizes.n, sizes.c_out, sizes.i), (sizes.n, sizes.c_out, sizes.d))
    )
    votes = make(conv)
    out = [votes.sums(weights), votes.agreements(poses)]
    return [*out, *gradients(out, [conv.poses, conv.weight, weights, poses])]


@on_each_set()
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("name", LAYERS)
def test_each_product(name: str) -> None:
    exact = products(name, lambda conv: DenseVotes(capsule_votes(conv)[0]), torch.float64)
    for ours, truth in zip(products(name, FusedVotes, torch.float32), exact, strict=True):
        assert ours.shape == truth.shape
        assert error(ours, truth) < 1e-5


def test_the_same_bits_with_any_number_of_threads(threads: Callable[[int], None]) -> None:
    for name in ("4×4 poses", "tied", COPIED):
        results = []
        for count in (1, 2, 5, 2):
            threads(count)
            results.append(products(name, FusedVotes, torch.float32))
        for other in results[1:]:
            assert same_bits(other, results[0])


def test_second_derivatives_are_refused() -> None:
    tensors = asking(LAYERS["4×4 poses"].tensors(), torch.float32, without=["vote_offset"])
    votes = FusedVotes(RoutingInputs(**tensors, geometry=LAYERS["4×4 poses"].geometry))
    (slope,) = torch.autograd.grad(votes.sums(votes.ones()).sum(), tensors["weight"], create_graph=True)
    with pytest.raises(NotImplementedError, match="votes"):
        slope.square().sum().backward()


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("kernel", ["capsule_conv_sums", "capsule_conv_agreements", "capsule_conv_gradients"])
def test_the_operators_keep_torch_s_contract(kernel: str) -> None:
    tensors = asking(LAYERS["4×4 poses"].tensors(), torch.float32, without=["vote_offset"])
    conv = RoutingInputs(**tensors, geometry=LAYERS["4×4 poses"].geometry)
    weights = FusedVotes(conv).ones().transpose(1, 2).requires_grad_()
    poses = torch.randn(conv.shape.n, conv.shape.c_out, conv.shape.d, requires_grad=True)
    made = (conv.poses, conv.weight)
    arguments = {
        "capsule_conv_sums": (*made, conv.vote_offset, weights),
        "capsule_conv_agreements": (*made, conv.vote_offset, poses),
        "capsule_conv_gradients": tuple(tensor.detach() for tensor in (*made, weights, poses)),
    }
    torch.library.opcheck(getattr(torch.ops.capsella, kernel).default, (*arguments[kernel], list(conv.shape)))
