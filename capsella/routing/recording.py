"""Look inside the routing: couplings and poses of every capsule layer, iteration by iteration.

>>> from capsella.routing import dynamic_routing
>>> with record() as traces:  # around a whole model: a trace for each routed layer
...     routed = dynamic_routing(torch.randn(1, 6, 3, 4), iterations=2)
>>> [couplings.shape for couplings in traces[0].couplings]  # [b i j], an entry an iteration
[torch.Size([1, 6, 3]), torch.Size([1, 6, 3])]
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class RoutingTrace:
    """One pass through one routed layer.

    name: the routing method, as registered ("dynamic", "uniform", …).
    couplings: per iteration [b i j]; a convolutional layer has b = images · positions, in that order.
    poses: per iteration, the parents' poses [b j d].
    activations: per iteration, the parents' activations [b j]; of the last, as their layer hands them on, where it
        normalises them.
    distances: per iteration [b i j], the Euclidean distance of child i's vote to parent j's pose; only routings by
        Gaussians keep them (EM, variational and Heinsen routing).
    """

    name: str
    couplings: list[Tensor] = field(default_factory=list)
    poses: list[Tensor] = field(default_factory=list)
    activations: list[Tensor] = field(default_factory=list)
    distances: list[Tensor] = field(default_factory=list)

    def add(self, couplings: Tensor, poses: Tensor, activations: Tensor, distances: Tensor | None = None) -> None:
        """Keep one iteration, detached from the graph."""
        self.couplings.append(couplings.detach())
        self.poses.append(poses.detach())
        self.activations.append(activations.detach())
        if distances is not None:
            self.distances.append(distances.detach())


_active: ContextVar[list[RoutingTrace] | None] = ContextVar("capsella_recording", default=None)


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
    """Nothing is kept of what is routed meanwhile, as where a backward pass computes again what was not recorded."""
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


def is_recording() -> bool:
    """Whether `record()` is open, for what is only worth computing then; never in a compiled model."""
    return not torch.compiler.is_compiling() and _active.get() is not None


def record_routed(name: str, before: int, couplings: Tensor, poses: Tensor, activations: Tensor) -> None:
    """Keep what a routing gave, as one iteration, where it has kept none itself since there were `before` traces."""
    if traces_kept() == before:
        new_trace(name).add(couplings, poses, activations)


def traces_kept() -> int:
    """Traces of the `record()` that is open; 0 where none is."""
    traces = None if torch.compiler.is_compiling() else _active.get()
    return 0 if traces is None else len(traces)


def record_normalised(activations: Tensor) -> None:
    """Replace the last iteration's activations in the latest trace by what the layer made of them [b h w j]."""
    if not torch.compiler.is_compiling() and (traces := _active.get()) is not None:
        traces[-1].activations[-1] = activations.detach().flatten(0, 2)


def new_trace(name: str) -> RoutingTrace:
    """A trace for a routing that starts now; it is kept only inside `record()`."""
    trace = RoutingTrace(name)
    # A compiled model records nothing: torch.compile cannot trace a ContextVar, and would cut the graph here.
    if not torch.compiler.is_compiling() and (traces := _active.get()) is not None:
        traces.append(trace)
    return trace
