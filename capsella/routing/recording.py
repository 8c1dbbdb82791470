"""Record couplings and poses of every capsule layer, iteration by iteration; the entropy of couplings.

>>> from capsella.routing import dynamic_routing
>>> with record() as traces:  # around a whole model: one trace per routed layer
...     routed = dynamic_routing(torch.randn(1, 6, 3, 4), iterations=2)
>>> [couplings.shape for couplings in traces[0].couplings]  # [b i j] per iteration
[torch.Size([1, 6, 3]), torch.Size([1, 6, 3])]
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import check_argument


@dataclass(frozen=True)
class RoutingTrace:
    """One pass through one routed layer.

    Attributes:
        name: the routing method, as registered ("dynamic", "uniform", …).
        couplings: per iteration [b i j]; in a convolutional layer, b runs over images and, within them, positions.
        poses: per iteration, the parents' poses [b j d].
        activations: per iteration, the parents' activations [b j]; the last ones are normalised if the layer does so.
        distances: per iteration [b i j], the Euclidean distance of child i's vote to parent j's pose; only for routings
            that fit Gaussians (EM, variational and Heinsen routing).
    """

    name: str
    couplings: list[Tensor] = field(default_factory=list)
    poses: list[Tensor] = field(default_factory=list)
    activations: list[Tensor] = field(default_factory=list)
    distances: list[Tensor] = field(default_factory=list)

    def add(self, couplings: Tensor, poses: Tensor, activations: Tensor, distances: Tensor | None = None) -> None:
        """Append one iteration, detached from the graph."""
        self.couplings.append(couplings.detach())
        self.poses.append(poses.detach())
        self.activations.append(activations.detach())
        if distances is not None:
            self.distances.append(distances.detach())


_active: ContextVar[list[RoutingTrace] | None] = ContextVar("capsella_recording", default=None)


def _open_traces() -> list[RoutingTrace] | None:
    """Return the traces of the `record()` that is open; None in a compiled model, which cannot read a ContextVar."""
    return None if torch.compiler.is_compiling() else _active.get()


@contextmanager
def record() -> Iterator[list[RoutingTrace]]:
    """Collect a `RoutingTrace` per routed layer, in the order of the forward pass, while the context is open.

    A model under `torch.compile` records nothing: record the model before it is compiled.
    """
    traces: list[RoutingTrace] = []
    token = _active.set(traces)
    try:
        yield traces
    finally:
        _active.reset(token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Suspend recording, e.g. while a backward pass repeats a forward pass that was not recorded."""
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


def is_recording() -> bool:
    """Return whether `record()` is open; always False in a compiled model."""
    return _open_traces() is not None


def trace_count() -> int:
    """Return the number of traces that the open `record()` has collected; 0 if none is open."""
    return len(_open_traces() or ())


def new_trace(name: str) -> RoutingTrace:
    """Return an empty trace for a routing; the open `record()`, if any, collects it."""
    trace = RoutingTrace(name)
    traces = _open_traces()
    if traces is not None:
        traces.append(trace)
    return trace


def record_routed(name: str, before: int, couplings: Tensor, poses: Tensor, activations: Tensor) -> None:
    """Record a routing's result as one iteration, unless the routing has added a trace since there were `before`."""
    if trace_count() == before:
        new_trace(name).add(couplings, poses, activations)


def record_normalised(activations: Tensor) -> None:
    """Replace the last activations of the latest trace by the layer's normalised ones [b h w j]."""
    if traces := _open_traces():
        traces[-1].activations[-1] = activations.detach().flatten(0, 2)


def coupling_entropy(couplings: Float[Tensor, "b i j"]) -> Float[Tensor, "b i"]:
    """Return the entropy of each child's couplings over its j parents, divided by ln j.

    1 means uniform couplings (nothing routed), 0 that the child goes to one parent alone. Couplings that sum to less
    than one (leaky routing, or a child for which other positions compete too) are first divided by their sum; a child
    that goes to no parent has an entropy of 0. Couplings of NaN have an entropy of NaN.

    Raises:
        ArgumentError: not three axes, or fewer than two parents.
    """
    shape = tuple(couplings.shape)
    check_argument(len(shape) == 3 and shape[2] > 1, "be [b i j] with at least 2 parents j", couplings=shape)
    total = couplings.sum(2, keepdim=True)
    shares = torch.where(total == 0, 0, couplings / total)
    return torch.special.entr(shares).sum(2) / math.log(shape[2])
