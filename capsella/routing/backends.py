"""Which implementation of a routing runs: the one asked for, or the fastest that fits."""

import os
from collections.abc import Collection, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, cast

import torch
from torch import Tensor

from capsella import _native
from capsella.errors import ArgumentError, warn_once
from capsella.routing.convolution import CapsuleConv
from capsella.routing.recording import is_recording

Backend = Literal["auto", "reference", "eager", "native", "triton"]
"""`reference`: plain loops, line for line with the paper. `eager`: PyTorch. `native`: C++ on the CPU, and `triton`:
kernels for CUDA devices; neither writes the votes to memory. `auto`: native for float32 on a CPU where it is built,
else eager."""

FUSED = ("native", "triton")
MOST_POSE_ELEMENTS = 256
"""Pose elements that the native kernels take."""


_ROUTINGS = ("cluster", "dynamic", "em", "heinsen", "variational")
NATIVE_MODULES = ("votes_native", *(f"{name}.native" for name in _ROUTINGS))
"""Modules of `capsella.routing` that register operators with PyTorch, each on its first import."""


def register_native_operators() -> None:
    """Make all native kernels known to PyTorch, as a graph that calls them needs; nothing where they are not built."""
    if _native.UNAVAILABLE is None:
        for name in NATIVE_MODULES:
            import_module(f"capsella.routing.{name}")


def choose_backend(backend: str, available: Collection[str], *, auto: str) -> str:
    """The backend to run: `auto`'s documented choice, or exactly the one asked for.

    While `record()` is open the eager backend stands in for the reference, whose loops keep no traces.

    Raises:
        ValueError: `backend` is not one of `available`.
    """
    if backend == "auto":
        return auto
    if backend not in available:
        raise ArgumentError("backend", f"be 'auto' or one of {sorted(available)} for this routing", backend)
    return "eager" if backend == "reference" and is_recording() else backend


def choose_conv_backend(
    backend: str, available: Collection[str], conv: CapsuleConv, slower: str, no_native: str | None = None
) -> Backend:
    """As `choose_backend`, for a capsule convolution, whose fused backends hold no votes.

    While `record()` is open the eager backend stands in for all others: couplings exist in it alone. Where "auto" has
    to take eager on a CPU, it says so, once for each reason.

    Args:
        slower: what eager means for such a layer, as in "EM routing runs in PyTorch, twice as slowly".
        no_native: why this routing has no native kernel for such a layer, where it has none.

    Raises:
        ValueError: `backend` is not one of `available`, or cannot run here (says why).
    """
    if backend == "auto" and no_native is None:
        warn_of_eager(conv.poses, native_obstacle(conv), slower)
    no_native = no_native or native_obstacle(conv)
    chosen = cast(Backend, choose_backend(backend, available, auto="native" if no_native is None else "eager"))
    if chosen not in FUSED:
        return chosen
    obstacle = no_native if chosen == "native" else triton_obstacle(conv)
    if obstacle is not None:
        raise ValueError(f"backend: {chosen!r} cannot run here: {obstacle}")
    return "eager" if is_recording() else chosen


def warn_of_eager(tensor: Tensor, obstacle: str | None, slower: str) -> None:
    """Say, once for each reason, why a layer on a CPU goes without the native kernels, and what to do.

    Not while couplings are recorded, nor in a graph that is being traced: eager is meant there.

    Args:
        tensor: that the layer works on. obstacle: the reason; None says nothing.
        slower: as for `choose_conv_backend`.
    """
    # A graph first: torch.compile would trace what follows.
    if is_traced() or is_recording() or tensor.device.type != "cpu":
        return
    if obstacle is not None:
        remedy = "" if obstacle == _native.UNAVAILABLE else '; backend="eager" does the same without this warning'
        warn_once(obstacle, f'{slower}: backend "native" cannot run here: {obstacle}{remedy}')


def is_traced() -> bool:
    """Whether a graph of PyTorch's operators is being made."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def asks_second_derivative() -> bool:
    """In a backward pass of one's own: whether PyTorch must see what it computes, to differentiate it again."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def is_transformed() -> bool:
    """Whether `torch.func` is at work, or derivatives are taken forward: PyTorch would take a kernel's for 0."""
    # Not by peek_interpreter_stack, which is never None while torch.compile traces.
    return torch.autograd.forward_ad._current_level >= 0 or torch._C._functorch.maybe_current_level() is not None


def triton_obstacle(conv: CapsuleConv) -> str | None:
    """Why the Triton kernels cannot take this convolution; None where they can."""
    if find_spec("triton") is None:
        return "it needs the package triton: pip install 'capsella[triton]' (on Linux)"
    # Triton's interpreter runs kernels as NumPy code, for tests.
    if conv.poses.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"it runs on CUDA devices, and the poses are on {conv.poses.device}"
    return None


def native_obstacle(conv: CapsuleConv) -> str | None:
    """Why the native kernels cannot take this convolution; None where they can."""
    if torch.jit.is_tracing():
        return "torch.jit.trace takes none of its operators; torch.export does"
    named = {"poses": conv.poses, "activations": conv.activations, "weight": conv.weight}
    if conv.vote_offset is not None:
        named["vote offset"] = conv.vote_offset
    for name, tensor in named.items():
        if (obstacle := tensor_obstacle(name, tensor)) is not None:
            return obstacle
    if (elements := max(conv.poses.shape[-1], conv.weight.shape[-1])) > MOST_POSE_ELEMENTS:
        return f"it takes poses of up to {MOST_POSE_ELEMENTS} elements, and these have {elements}"
    if conv.vote_offset is not None and conv.vote_offset.requires_grad:
        return "it takes vote_offset as a constant, and this one asks for gradients"
    return None


def tensor_obstacle(name: str, tensor: Tensor, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> str | None:
    """Why native kernels cannot take a tensor, for its device or for a type beside `dtypes`; None where they can."""
    if _native.UNAVAILABLE is not None:
        return _native.UNAVAILABLE
    if is_transformed():
        return "it knows backward passes alone, and torch.func or a forward derivative asks for others"
    verb = "are" if name.endswith("s") else "is"
    if tensor.device.type != "cpu":
        return f"it runs on the CPU, and the {name} {verb} on {tensor.device}"
    if tensor.dtype not in dtypes:
        taken = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return f"it takes {taken}, and the {name} {verb} {tensor.dtype}"
    return None
