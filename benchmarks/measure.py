"""Measure a case: first whether the fused kernels are right, then times, and the memory of training steps.

`python -m benchmarks.measure CASE CONTENDER THREADS` is the fresh process in which memory is measured.
"""

import dataclasses
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.cases import Case, Inputs, NetworkOp, Op, select
from benchmarks.plain import plain
from capsella.bench import Timing, timings
from capsella.errors import CapsellaError
from capsella.routing import Routing

ROOT = Path(__file__).parents[1]
# A kernel may be this much farther from float64 than eager in float32: another order of sums, no other formula.
# Rounding grows through the layers of a network.
LAYER_FACTOR, NETWORK_FACTOR = 4.0, 30.0
FLOOR = 1e-6  # some units in the last place of float32
Step = Callable[[], dict[str, Tensor]]


class UnavailableError(Exception):
    """The contender cannot run this case on this machine; the message is the reason."""


@dataclass(frozen=True)
class Contender:
    """One way to compute an op.

    routing: from the op's options to its implementation. fused: its results are verified.
    """

    name: str
    routing: Callable[[Routing], Routing]
    fused: bool = False

    def step(self, case: Case, device: torch.device) -> Step:
        """Return the function to time, after a first call.

        Raises:
            UnavailableError: the routing lacks this backend, or memory is too small.
        """
        try:
            module = case.op.module(self.routing(case.op.routing)).to(device)
            step = step_of(case, module, _copies(case.op.inputs(case.batch), device))
            step()
        except ValueError as error:
            raise UnavailableError(_reason(error)) from error
        except torch.OutOfMemoryError as error:
            raise UnavailableError("out of memory") from error
        return step


def _reason(error: ValueError) -> str:
    """Return why a routing lacks a backend or a port; raise any other error."""
    kind, _, reason = str(error).partition(": ")
    if kind not in ("backend", "routing"):
        raise error
    return reason


def step_of(case: Case, module: nn.Module, inputs: Inputs) -> Step:
    """Return a forward pass without gradients, or a training step from clearing the gradients to the update."""
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
        if isinstance(case.op, NetworkOp):
            optimizer.step()
        return outputs

    return train


def _copies(inputs: Inputs, device: torch.device, dtype: torch.dtype | None = None) -> Inputs:
    """Return copies that require gradients if the originals do; integers keep their dtype."""
    dtypes = [dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype for tensor in inputs]
    pairs = zip(inputs, dtypes, strict=True)
    return tuple(tensor.detach().to(device, kind).requires_grad_(tensor.requires_grad) for tensor, kind in pairs)


def backend(name: str) -> Callable[[Routing], Routing]:
    """Return the function from a routing to the same one on a backend."""
    return lambda routing: dataclasses.replace(routing, backend=name)  # type: ignore[call-arg]


PLAIN = Contender("plain", plain)
EAGER = Contender("eager", backend("eager"))
NATIVE = Contender("native", backend("native"), fused=True)
TRITON = Contender("triton", backend("triton"), fused=True)
CONTENDERS = {contender.name: contender for contender in (PLAIN, EAGER, NATIVE, TRITON)}


class Parity(NamedTuple):
    """One tensor of a fused kernel. Errors are ‖x − y‖ / ‖y‖, where y comes from eager in float64."""

    tensor: str
    error: float
    eager_error: float
    factor: float

    @property
    def agrees(self) -> bool:
        """True if it is near enough; not-a-number is not."""
        return self.error <= max(self.factor * self.eager_error, FLOOR)


def parity(op: Op, batch: int, contender: Contender, device: torch.device) -> list[Parity]:
    """Compare outputs and gradients of a contender with eager in float64, tensor by tensor.

    Raises:
        ValueError: the contender has no such backend here ("backend: …").
    """

    def solve(routing: Routing, dtype: torch.dtype) -> dict[str, Tensor]:
        module, inputs = op.module(routing).to(device, dtype), _copies(op.inputs(batch), device, dtype)
        with torch.no_grad():
            alone = op.outputs(module, inputs)
        results = {f"{name} without gradients": tensor for name, tensor in alone.items()} | op.backward(module, inputs)
        tensors = {f"input {k}": tensor for k, tensor in enumerate(inputs) if tensor.requires_grad}
        for name, tensor in (tensors | dict(module.named_parameters())).items():
            results[f"gradient of {name}"] = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        return {name: tensor.detach() for name, tensor in results.items()}

    judge = solve(backend("eager")(op.routing), torch.float64)
    eager = solve(backend("eager")(op.routing), torch.float32)
    ours = solve(contender.routing(op.routing), torch.float32)
    factor = NETWORK_FACTOR if isinstance(op, NetworkOp) else LAYER_FACTOR
    return [Parity(name, _error(ours[name], y), _error(eager[name], y), factor) for name, y in judge.items()]


def _error(x: Tensor, y: Tensor) -> float:
    size, distance = float(y.norm()), float((x.double() - y).norm())
    return distance / size if size > 0 else distance


@dataclass
class Result:
    """Measurements of one case, by contender."""

    case: Case
    parity: dict[str, list[Parity]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)

    @property
    def wrong(self) -> dict[str, list[Parity]]:
        """Contenders whose results are wrong, with the tensors; they are not timed."""
        tensors = {name: [row for row in rows if not row.agrees] for name, rows in self.parity.items()}
        return {name: rows for name, rows in tensors.items() if rows}

    def ratio(self, contender: str, other: str) -> float | None:
        """Return how many times as fast as `other` a contender is; None if one was not timed."""
        if contender not in self.timings or other not in self.timings:
            return None
        return self.timings[other].median / self.timings[contender].median


def verify_case(case: Case, contenders: Sequence[Contender], device: torch.device) -> Result:
    """Compare every fused contender with eager in float64."""
    result = Result(case)
    for contender in contenders:
        if contender.fused:
            try:
                result.parity[contender.name] = parity(case.op, case.batch, contender, device)
            except ValueError as error:
                result.unavailable[contender.name] = _reason(error)
    return result


def run_case(
    case: Case, contenders: Sequence[Contender], device: torch.device, repeats: int, seconds: float, memory: bool
) -> Result:
    """Verify and then measure one case without the contenders that are wrong."""
    result = verify_case(case, contenders, device)
    steps: dict[str, Step] = {}
    for contender in contenders:
        if contender.name not in {*result.wrong, *result.unavailable}:
            try:
                steps[contender.name] = contender.step(case, device)
            except UnavailableError as error:
                result.unavailable[contender.name] = str(error)
    result.timings = timings(steps, repeats, seconds, device)
    steps.clear()
    gc.collect()
    if memory and case.training and device.type == "cpu" and Path("/proc/self/clear_refs").exists():
        known = [name for name in result.timings if name in CONTENDERS]
        result.memory_mib = {name: peak_memory_mib(case, name) for name in known}
    return result


def peak_memory_mib(case: Case, contender: str) -> float:
    """Return the peak memory of a training step above that of a fresh process with module and inputs (Linux).

    Raises:
        CapsellaError: the process failed.
    """
    words = [sys.executable, "-m", "benchmarks.measure", case.name, contender, str(torch.get_num_threads())]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise CapsellaError(f"the memory of {case.name} with {contender} was not measured: {run.stderr[-2000:]}")
    return float(json.loads(run.stdout))


def _print_peak(name: str, contender: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    (case,) = select(name)
    torch.mm(torch.ones(64, 64), torch.ones(64, 64))  # starts the threads, whose memory belongs to the process
    step = step_of(case, case.op.module(CONTENDERS[contender].routing(case.op.routing)), case.op.inputs(case.batch))
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to what is resident now
    before = _high_water_kib()
    for _ in range(2):  # the second step finds the gradients of the first, as every later one does
        step()
    print(json.dumps((_high_water_kib() - before) / 1024))


def _high_water_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    _print_peak(*sys.argv[1:])
