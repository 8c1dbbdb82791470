"""Who is measured: the same weights and inputs, and another implementation of the routing."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from benchmarks.cases import Case
from benchmarks.ops import Inputs, NetworkOp, Op, without_capsules
from benchmarks.plain import plain
from capsella.routing import Routing

MISCOMPILED = {"dynamic-dense": "its compiled backward pass corrupts memory with PyTorch 2.13 (pytorch/pytorch#159154)"}
"""Ops whose training step `torch.compile` of eager gets wrong on a CPU: the process dies some calls later."""

Step = Callable[[], dict[str, Tensor]]


class UnavailableError(Exception):
    """The contender does not exist for this op, on this machine; says why."""


@dataclass(frozen=True)
class Contender:
    """One way to compute an op.

    routing: from the op's options to its implementation. fused: it claims a speed-up, so its results are verified.
    compiled: under `torch.compile`. bare: a network without its capsule layers.
    """

    name: str
    routing: Callable[[Routing], Routing]
    fused: bool = False
    compiled: bool = False
    bare: bool = False

    def suits(self, op: Op) -> bool:
        """Only a whole network can do without its capsule layers."""
        return not self.bare or isinstance(op, NetworkOp)

    def module(self, op: Op, device: torch.device) -> nn.Module:
        """The op with this implementation."""
        module = op.module(self.routing(op.routing))
        if self.bare:
            module = without_capsules(module)  # type: ignore[arg-type]
        module.to(device)
        return torch.compile(module) if self.compiled else module  # type: ignore[return-value]

    def step(self, case: Case, device: torch.device) -> Step:
        """The function to time; not called yet.

        Raises:
            UnavailableError: the compiled op is known to corrupt memory.
        """
        if self.compiled and case.training and device.type == "cpu" and case.op.name in MISCOMPILED:
            raise UnavailableError(MISCOMPILED[case.op.name])
        return step_of(case, self.module(case.op, device), to_device(case.op.inputs(case.batch), device))


def first_call(step: Step) -> None:
    """Call a step for the first time, which tells whether it can run.

    Raises:
        UnavailableError: the routing has no such backend for this op, or the memory of the device is too small.
    """
    try:
        step()
    except ValueError as error:
        if not str(error).startswith("backend:"):
            raise
        raise UnavailableError(str(error).removeprefix("backend: ")) from error
    except torch.OutOfMemoryError as error:
        raise UnavailableError("out of memory") from error


def step_of(case: Case, module: nn.Module, inputs: Inputs) -> Step:
    """A forward pass without gradients, or a training step from clearing the gradients to the optimizer's update."""
    if not case.training:
        module.eval()
        return torch.no_grad()(lambda: case.op.outputs(module, inputs))
    # At a learning rate of 0 Adam computes all it ever does, and every step of a contender is the same problem.
    optimizer = torch.optim.Adam(module.parameters(), lr=0.0)

    def train() -> dict[str, Tensor]:
        optimizer.zero_grad()
        for tensor in inputs:
            tensor.grad = None
        outputs = case.op.backward(module, inputs)
        if case.op.has_optimizer:
            optimizer.step()
        return outputs

    return train


def to_device(inputs: Inputs, device: torch.device) -> Inputs:
    """Copies there, which ask for gradients where the originals do."""
    return tuple(tensor.detach().to(device).requires_grad_(tensor.requires_grad) for tensor in inputs)


def backend(name: str) -> Callable[[Routing], Routing]:
    """From a routing to the same one on that backend."""
    return lambda routing: replace(routing, backend=name)  # type: ignore[call-arg]


PLAIN = Contender("plain", plain)
EAGER = Contender("eager", backend("eager"))
COMPILE = Contender("compile", backend("eager"), compiled=True)
NATIVE = Contender("native", backend("native"), fused=True)
TRITON = Contender("triton", backend("triton"), fused=True)
BARE = Contender("bare", backend("eager"), bare=True)
CONTENDERS = {contender.name: contender for contender in (PLAIN, EAGER, COMPILE, NATIVE, TRITON, BARE)}


def contenders_of(device: torch.device, compiled: bool) -> tuple[Contender, ...]:
    """In the order in which they take turns; `torch.compile` where asked for, as it is slow to start."""
    fused = NATIVE if device.type == "cpu" else TRITON
    return (PLAIN, EAGER, *([COMPILE] if compiled else []), fused, BARE)
