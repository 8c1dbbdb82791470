"""`python -m benchmarks [PATTERN]` measures; `python -m benchmarks verify [PATTERN]` only checks the results."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import sklearn  # noqa: F401  brings a second OpenMP runtime, as programs do that use both
import torch
import tyro
from rich.console import Console
from rich.markup import escape

from benchmarks.cases import cases_of, select
from benchmarks.contenders import Contender, contenders_of
from benchmarks.flops import peak_flops
from benchmarks.report import document, print_measured, print_parity, print_summary
from benchmarks.runner import Known, Options, Result, run_case, verify_case
from capsella.errors import CapsellaError
from capsella.files import write_json

Pattern = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]")]


@dataclass(frozen=True)
class Verify:
    """Check the fused kernels against the eager backend in float64; exit code 1 where one is wrong."""

    pattern: Pattern = "*"
    """A shell pattern or the beginning of names, as in 'em-' or '*/b8/*'."""
    threads: int | None = None
    """Threads; without it, PyTorch's choice."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where it computes."""


@dataclass(frozen=True)
class Measure(Verify):
    """Time the routing kernels in turn with plain PyTorch, the eager backend and the network without capsule layers.

    Exit code 1 where a kernel's results are wrong; it is then not timed. `verify [PATTERN]` only checks the results.
    """

    repeats: int = 7
    """Rounds a case at least."""
    seconds: float = 2.0
    """More rounds until these have passed."""
    compile: bool = False
    """Also torch.compile of the eager backend, which takes minutes to start."""
    memory: bool = True
    """Measure the peak memory of training steps, each in a process of its own."""
    largest_batch: bool = False
    """Only cuda: search the largest batch that fits, for training steps."""
    json: Path | None = None
    """Write everything to this file."""


def main(arguments: Sequence[str] | None = None, contenders: tuple[Contender, ...] | None = None) -> int:
    """Run with `arguments` (default: the command line's); `contenders` other than the usual ones are for tests."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # a file or pipe has no width to fit into
    try:
        if words[:1] == ["verify"]:
            return _verify(tyro.cli(Verify, args=words[1:], prog="benchmarks verify"), contenders, console)
        return _measure(tyro.cli(Measure, args=words, prog="benchmarks"), contenders, console)
    except (CapsellaError, ValueError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 1


def _device(asked: Verify) -> torch.device:
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    if asked.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: cuda must be there on this machine")
    return torch.device(asked.device)


def _verify(asked: Verify, contenders: tuple[Contender, ...] | None, console: Console) -> int:
    device, known, refused = _device(asked), Known(), False
    cases = {(case.op.name, case.batch): case for case in select(cases_of(device), asked.pattern)}
    for case in cases.values():
        result = verify_case(case, contenders or contenders_of(device, compiled=False), device, known)
        print_parity(result, console)
        refused |= bool(result.refused)
    return int(refused)


def _measure(asked: Measure, contenders: tuple[Contender, ...] | None, console: Console) -> int:
    device, known = _device(asked), Known()
    options = Options(device, asked.repeats, asked.seconds, asked.memory, asked.largest_batch)
    peak, results = peak_flops(device), list[Result]()
    console.print(f"peak: {peak / 1e9:.0f} GFLOP/s in float32 matrix products, {torch.get_num_threads()} threads")
    for case in select(cases_of(device), asked.pattern):
        results.append(run_case(case, contenders or contenders_of(device, asked.compile), options, known))
        print_parity(results[-1], console)
        print_measured(results[-1], peak, console)
        if asked.json is not None:  # after every case, so that an interrupted run leaves what it measured
            write_json(asked.json, document(results, peak, options))
    print_summary(results, peak, console)
    return int(any(result.refused for result in results))


if __name__ == "__main__":
    sys.exit(main())
