"""Arithmetic that an algorithm asks for, whoever computes it, and the most this machine does in a second.

A multiplication and an addition count one each. Of a vote element V, with q numbers in a row of a pose: 2q to make it,
once; in each iteration of EM, variational Bayes and Heinsen routing 2 for Σ r V and 4 for Σ r (V − μ)², and 4 for
(V − μ)²/σ² in all but the last; in dynamic routing and inverted attention 2 for Σ c V, and 2 for V·v in all but the
last; in self-routing 2, without its logits; in self-attention 6. Tied dynamic routing needs no votes:
s = Σ_t W (Σ c u), and û·v = u·(W v). A training step counts three times the forward pass, as for matrix
products: gradients of both factors. Recomputation counts nothing.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from capsella.layers import CapsuleConv2d
from capsella.models.classifiers import CapsuleClassifier
from capsella.routing import (
    DynamicRouting,
    EMRouting,
    HeinsenRouting,
    InvertedAttentionRouting,
    Routing,
    SelfAttentionRouting,
    SelfRouting,
    VariationalRouting,
)


def layer_flops(layer: CapsuleConv2d, poses: tuple[int, ...]) -> int:
    """Of the forward pass for children's poses of shape [b h w c_in p].

    Raises:
        ValueError: a routing whose arithmetic is not counted here.
    """
    batch, height, width, c_in, p = poses
    c_out, q, columns = layer.weight.shape[3:]
    rows, cols = layer.geometry.grid((height, width))
    positions = layer.geometry.kernel[0] * layer.geometry.kernel[1]
    links = batch * rows * cols * positions * c_in * c_out  # pairs of a child and a parent
    d = p // q * columns
    if isinstance(layer.routing, EMRouting | VariationalRouting | HeinsenRouting):
        T = layer.routing.iterations
        return links * d * (2 * q + 6 * T + 4 * (T - 1))
    passes = _passes(layer.routing)
    if layer.geometry.tied and isinstance(layer.routing, DynamicRouting):
        return passes * 2 * (links * p + links // positions * d * q)
    return links * d * (2 * q + 2 * passes)


def _passes(routing: Routing) -> int:
    """Sums of votes and agreements with them, of routings that need no more."""
    if isinstance(routing, DynamicRouting | InvertedAttentionRouting):
        return 2 * routing.iterations - 1
    if isinstance(routing, SelfRouting):
        return 1
    if isinstance(routing, SelfAttentionRouting):
        return 3
    raise ValueError(f"routing: must be one with kernels of its own to be counted, got {routing.name!r}")


def network_flops(
    model: CapsuleClassifier,
    bare: CapsuleClassifier,
    inputs: tuple[Any, ...],
    step: Callable[[nn.Module, Any], Any],
    training: bool,
) -> int:
    """Of `step(model, inputs)`: counted in the network without capsule layers, plus the formula for each of these."""
    with FlopCounterMode(display=False) as counter:
        step(bare, inputs)
    counted: list[int] = []

    def count(layer: nn.Module, children: tuple[Any, ...]) -> None:
        assert isinstance(layer, CapsuleConv2d)
        counted.append(layer_flops(layer, children[0].poses.shape))

    hooks = [layer.register_forward_pre_hook(count) for layer in model.capsule_layers]
    with torch.no_grad():
        model(*inputs)
    for hook in hooks:
        hook.remove()
    return int(counter.get_total_flops()) + sum(counted) * (3 if training else 1)


def peak_flops(device: torch.device, seconds: float = 1.0) -> float:
    """Floating point operations a second of the best of many float32 matrix products (TF32 off)."""
    size = 8192 if device.type == "cuda" else 1536
    a, b = (torch.rand(size, size, device=device) for _ in range(2))
    out = a @ b
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < seconds:
        began = time.perf_counter()
        torch.mm(a, b, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
