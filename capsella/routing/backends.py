"""Which implementation of a routing runs: the one asked for, or the fastest that fits."""

from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor

from capsella import _native
from capsella.routing.recording import is_recording

Backend = Literal["auto", "reference", "eager", "native"]
"""`reference`: plain loops, line for line with the paper. `eager`: PyTorch. `native`: C++ on the CPU, which never
writes the votes to memory. `auto`: native for float32 on a CPU where it is built, else eager."""

MOST_POSE_ELEMENTS = 256
"""Pose elements that the native kernels take."""


def choose_backend(backend: str, available: Collection[str], *, auto: str) -> str:
    """The backend to run: `auto`'s documented choice, or exactly the one asked for.

    Raises:
        ValueError: `backend` is not one of `available`.
    """
    if backend == "auto":
        return auto
    if backend not in available:
        raise ValueError(f"backend: must be 'auto' or one of {sorted(available)} for this routing, got {backend!r}")
    return backend


def choose_conv_backend(
    backend: str,
    available: Collection[str],
    poses: Tensor,
    weight: Tensor,
    vote_offset: Tensor | None,
    obstacle: str | None = None,
) -> Backend:
    """As `choose_backend`, for a capsule convolution, whose fused backends hold no votes.

    While `record()` is open the eager backend stands in for fused ones: couplings exist in it alone. `obstacle`: why
    this routing has no native kernel for such a layer, where it has none.

    Raises:
        ValueError: `backend` is not one of `available`, or cannot run on these poses (says why).
    """
    obstacle = obstacle or native_obstacle(poses, weight, vote_offset)
    chosen = choose_backend(backend, available, auto="native" if obstacle is None else "eager")
    if chosen != "native":
        return "reference" if chosen == "reference" else "eager"
    if obstacle is not None:
        raise ValueError(f"backend: 'native' cannot run here: {obstacle}")
    return "eager" if is_recording() else "native"


def native_obstacle(poses: Tensor, weight: Tensor, vote_offset: Tensor | None) -> str | None:
    """Why the native kernels cannot take these poses; None where they can."""
    if _native.UNAVAILABLE is not None:
        return _native.UNAVAILABLE
    if poses.device.type != "cpu":
        return f"it runs on the CPU, and the poses are on {poses.device}"
    if poses.dtype != torch.float32:
        return f"it takes float32, and the poses are {poses.dtype}"
    if (elements := max(poses.shape[-1], weight.shape[-1])) > MOST_POSE_ELEMENTS:
        return f"it takes poses of up to {MOST_POSE_ELEMENTS} elements, and these have {elements}"
    if vote_offset is not None and vote_offset.requires_grad:
        return "it takes vote_offset as a constant, and this one asks for gradients"
    return None
