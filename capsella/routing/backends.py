"""Choose the backend that runs a routing: the requested one, or the fastest that can."""

import os
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from typing import Literal, cast

import torch
from torch import Tensor

from capsella import _native
from capsella.errors import ArgumentError, warn_once
from capsella.routing.convolution import RoutingInputs
from capsella.routing.functional import is_traced, is_transformed
from capsella.routing.recording import is_recording

# reference: plain loops, line for line with the paper. eager: PyTorch. native: C++ on the CPU, and triton: kernels for
# CUDA devices; neither writes the votes to memory. auto: native for float32 on a CPU where it is built, else eager.
Backend = Literal["auto", "reference", "eager", "native", "triton"]
DENSE = ("reference", "eager")
FUSED = ("native", "triton")
MOST_POSE_ELEMENTS = 256  # per pose, in the native kernels


def choose_backend(backend: str, available: Collection[str] = DENSE, *, auto: str = "eager") -> str:
    """Return the backend to run: `auto` if `backend` is "auto", otherwise `backend` itself.

    While `record()` is open, "eager" replaces "reference", whose loops keep no traces.

    Raises:
        ArgumentError: `backend` is not one of `available`.
    """
    if backend == "auto":
        return auto
    if backend not in available:
        raise ArgumentError("backend", f"be 'auto' or one of {sorted(available)} for this routing", backend)
    return "eager" if backend == "reference" and is_recording() else backend


def choose_layer_backend(
    backend: str, fused: Sequence[str], inputs: RoutingInputs, slower: str, no_native: str | None = None
) -> Backend:
    """Return the backend that runs a layer; unlike `choose_backend`, this knows the fused ones, which store no votes.

    While `record()` is open, "eager" replaces all others, because only eager has couplings to record. If "auto" falls
    back to eager on a CPU, this warns once per reason.

    Args:
        backend: the requested backend.
        fused: the fused backends of the routing.
        inputs: the inputs of the layer.
        slower: start of the warning, e.g. "EM routing runs in PyTorch, twice as slowly".
        no_native: the reason why the routing has no native kernel for this kind of layer; None if it has one.

    Raises:
        ValueError: the routing has no such backend, or it cannot run here.
    """
    if backend == "auto" and no_native is None:
        warn_of_eager(inputs.poses, native_obstacle(inputs), slower)
    no_native = no_native or native_obstacle(inputs)
    auto = "native" if no_native is None else "eager"
    chosen = cast(Backend, choose_backend(backend, (*DENSE, *fused), auto=auto))
    if chosen not in FUSED:
        return chosen
    obstacle = no_native if chosen == "native" else triton_obstacle(inputs)
    if obstacle is not None:
        raise ValueError(f"backend: {chosen!r} cannot run here: {obstacle}")
    return "eager" if is_recording() else chosen


def warn_of_eager(tensor: Tensor, obstacle: str | None, slower: str) -> None:
    """Warn, once per reason, that a layer on a CPU runs without the native kernels, and name the remedy.

    While a graph is traced or couplings are recorded, eager is intended, and there is no warning.

    Args:
        tensor: an input of the layer.
        obstacle: the reason; None for no warning.
        slower: as for `choose_layer_backend`.
    """
    # Tracing is checked first, because torch.compile would trace the other checks.
    if is_traced() or is_recording() or tensor.device.type != "cpu":
        return
    if obstacle is not None:
        remedy = "" if obstacle == _native.UNAVAILABLE else '; backend="eager" does the same without this warning'
        warn_once(obstacle, f'{slower}: backend "native" cannot run here: {obstacle}{remedy}')


def triton_obstacle(inputs: RoutingInputs) -> str | None:
    """Return the reason why the Triton kernels cannot take this layer; None if they can."""
    if find_spec("triton") is None:
        return "it needs the package triton: pip install 'capsella[triton]' (on Linux)"
    # Triton's interpreter runs kernels as NumPy code, for tests.
    if inputs.poses.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"it runs on CUDA devices, and the poses are on {inputs.poses.device}"
    return None


def native_obstacle(inputs: RoutingInputs) -> str | None:
    """Return the reason why the native kernels cannot take this layer; None if they can."""
    if torch.jit.is_tracing():
        return "torch.jit.trace does not support its operators; torch.export does"
    offset = inputs.vote_offset
    tensors = {"poses": inputs.poses, "activations": inputs.activations, "weight": inputs.weight}
    for name, tensor in (tensors if offset is None else {**tensors, "vote offset": offset}).items():
        if (obstacle := tensor_obstacle(name, tensor)) is not None:
            return obstacle
    if (elements := max(inputs.poses.shape[-1], inputs.weight.shape[-1])) > MOST_POSE_ELEMENTS:
        return f"it takes poses of up to {MOST_POSE_ELEMENTS} elements, and these have {elements}"
    if offset is not None and offset.requires_grad:
        return "it treats vote_offset as a constant, and this one requires gradients"
    return None


def tensor_obstacle(name: str, tensor: Tensor, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> str | None:
    """Return the reason why native kernels cannot take a tensor: its device, or a type other than `dtypes`."""
    if _native.UNAVAILABLE is not None:
        return _native.UNAVAILABLE
    if is_transformed():
        return "it supports only backward passes, and torch.func or a forward-mode derivative is active"
    verb = "are" if name.endswith("s") else "is"
    if tensor.device.type != "cpu":
        return f"it runs on the CPU, and the {name} {verb} on {tensor.device}"
    if tensor.dtype not in dtypes:
        taken = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return f"it takes {taken}, and the {name} {verb} {tensor.dtype}"
    return None
