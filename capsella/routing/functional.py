"""Functions that routings share: argument checks, squashing, queries of autograd's state, and routing in chunks."""

from collections.abc import Callable
from numbers import Integral

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from capsella.errors import ArgumentError, check_argument
from capsella.routing.recording import is_recording, unrecorded
from capsella.types import Capsules, at_least_float32

# Inside square roots: a zero vector then has a zero value and a zero gradient, instead of NaN.
EPSILON = 1e-12
# Approximate number of vote elements per chunk, which has at least one image. On a CPU they fit into its cache.
CHUNK = {"cpu": 2**20}
CHUNK_ELSEWHERE = 2**26


def check_votes(votes: Tensor) -> None:
    """Check that votes are [b i j d], floating point, with at least one child, parent and pose element."""
    shape = tuple(votes.shape)
    check_argument(votes.ndim == 4, "have the four axes [b i j d]", votes=shape)
    check_argument(votes.is_floating_point(), "be floating point", votes=votes.dtype)
    check_argument(0 not in shape[1:], "have at least one child, parent and pose element", votes=shape)


def check_iterations(iterations: int) -> None:
    """Check that a number of iterations is a whole number of at least 1."""
    whole = isinstance(iterations, Integral) and not isinstance(iterations, bool)
    check_argument(whole and iterations >= 1, "be a whole number of at least 1", iterations=iterations)


def check_shape(argument: str, tensor: Tensor, shape: tuple[int, ...], axes: str) -> None:
    """Check that a tensor has exactly this shape; `axes` describes it in the error, e.g. "[j d]"."""
    if tuple(tensor.shape) != shape:
        raise ArgumentError(argument, f"have shape {axes} = {shape}", tuple(tensor.shape))


def widened(votes: Tensor, activations: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    """Check votes [b i j d] and activations [b i], and return all arguments in the votes' dtype, at least float32."""
    check_votes(votes)
    check_shape("activations", activations, tuple(votes.shape[:2]), "[b i]")
    dtype = torch.promote_types(votes.dtype, torch.float32)
    return tuple(tensor.to(dtype) for tensor in (votes, activations, *parameters))


def squash(s: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Shrink a vector to a length below 1, keeping its direction (Sabour et al. 2017, Eq. 1).

    v = ‖s‖²/(1+‖s‖²) · s/‖s‖, computed at least in float32, because squares overflow in float16.

    >>> import torch
    >>> squash(torch.tensor([3.0, 4.0])).norm().item()  # 25 / 26
    0.9615...
    >>> squash(torch.zeros(2))
    tensor([0., 0.])
    """
    wide = at_least_float32(s)
    squared = wide.square().sum(-1, keepdim=True)
    return (wide * (squared / (1 + squared) / (squared + EPSILON).sqrt())).to(s.dtype)


def squash_exponential(s: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Shrink a vector to a length below 1, keeping its direction (Mazzia et al. 2021, Eq. 3).

    v = (1 − e^−‖s‖) · s/‖s‖ has slope 1 at zero, where `squash` has slope 0 and short vectors hardly learn.

    >>> import torch
    >>> squash_exponential(torch.tensor([3.0, 4.0])).norm().item()  # 1 − e⁻⁵
    0.9932...
    >>> squash_exponential(torch.zeros(2))
    tensor([0., 0.])
    """
    wide = at_least_float32(s)
    norm = length(wide).unsqueeze(-1)
    return (wide * (-torch.expm1(-norm) / norm)).to(s.dtype)


def length(v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """Return the length ‖v‖ of a capsule, which [S] reads as the probability that its entity is there.

    It is never exactly zero (at least 1e-6), so that its gradient is finite for a zero vector.
    """
    return (at_least_float32(v).square().sum(-1) + EPSILON).sqrt().to(v.dtype)


def is_traced() -> bool:
    """Return whether PyTorch is tracing a graph, for `torch.compile`, `torch.export` or `torch.jit.trace`."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_transformed() -> bool:
    """Return whether `torch.func` or forward-mode derivatives are active; a kernel's derivatives would then be 0."""
    # Not by peek_interpreter_stack, which is never None while torch.compile traces.
    return torch.autograd.forward_ad._current_level >= 0 or torch._C._functorch.maybe_current_level() is not None


def asks_second_derivative() -> bool:
    """Return whether PyTorch may differentiate the running backward pass, which must then consist of its operators."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def checkpointed_in_chunks(route: Callable[[Capsules], Capsules], children: Capsules, elements: int) -> Capsules:
    """Route some images at a time, so that memory never holds all votes; the backward pass makes them again.

    Outputs are bitwise those of the whole batch. Gradients of weights are sums over chunks, so they differ by rounding.
    The batch is not split in a traced graph, while couplings are recorded, or under `torch.func` or forward-mode
    derivatives.

    Args:
        route: makes and routes the votes of each image independently; the backward pass calls it again, with the same
            random numbers.
        children: poses [b h w c p] and activations [b h w c].
        elements: vote elements of one image: windows · children · parents · pose elements.
    """
    # The batch size is compared last: a traced graph that compares it would accept no other batch size.
    if is_traced() or is_transformed() or is_recording():
        return route(children)
    images = max(1, CHUNK.get(children.poses.device.type, CHUNK_ELSEWHERE) // max(1, elements))
    if len(children.poses) <= images:
        return route(children)
    chunks = zip(children.poses.split(images), children.activations.split(images), strict=True)
    if torch.is_grad_enabled():

        def route_again(poses: Tensor, activations: Tensor) -> tuple[Tensor, ...]:
            with unrecorded():  # a backward pass may run while others are recorded
                return tuple(route(Capsules(poses, activations)))

        routed = [checkpoint(route_again, *chunk, use_reentrant=False) for chunk in chunks]
    else:
        routed = [route(Capsules(*chunk)) for chunk in chunks]
    poses, activations = zip(*routed, strict=True)
    return Capsules(torch.cat(poses), torch.cat(activations))
