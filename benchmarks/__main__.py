"""`python -m benchmarks [PATTERN]` measures; `python -m benchmarks --verify [PATTERN]` only checks the results."""

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

from benchmarks.cases import select
from benchmarks.measure import EAGER, NATIVE, PLAIN, TRITON, Contender, run_case, verify_case
from benchmarks.report import document, print_measured, print_parity
from capsella.errors import CapsellaError
from capsella.files import write_json


@dataclass(frozen=True)
class Measure:
    """Time the routing kernels in turn with plain PyTorch and the eager backend.

    A kernel whose results are wrong is not timed, and the exit code is 1.
    """

    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]")] = "*"
    """A shell pattern or the beginning of names, as in 'em-' or '*/b8/*'."""
    verify: bool = False
    """Only compare the kernels with the eager backend in float64."""
    repeats: int = 7
    """Rounds per case, at least."""
    seconds: float = 2.0
    """Add rounds until this many seconds have passed."""
    memory: bool = True
    """Measure the peak memory of training steps, each in a process of its own."""
    threads: int | None = None
    """Threads; default: PyTorch's choice."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device to compute on."""
    json: Path | None = None
    """Write everything to this file."""


def main(arguments: Sequence[str] | None = None, contenders: tuple[Contender, ...] | None = None) -> int:
    """Run with `arguments` (default: the command line's); tests pass `contenders`."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # files and pipes have no width
    try:
        return _run(tyro.cli(Measure, args=arguments, prog="benchmarks"), contenders, console)
    except (CapsellaError, ValueError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 1


def _run(options: Measure, contenders: tuple[Contender, ...] | None, console: Console) -> int:
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: cuda must be there on this machine")
    device, cases, results = torch.device(options.device), select(options.pattern), []
    fused = NATIVE if options.device == "cpu" else TRITON
    chosen = contenders or (PLAIN, EAGER, fused)
    for case in cases:
        if options.verify:
            results.append(verify_case(case, chosen, device))
        else:
            results.append(run_case(case, chosen, device, options.repeats, options.seconds, options.memory))
        print_parity(results[-1], console)
        if not options.verify:
            print_measured(results[-1], console)
        if options.json is not None:  # after every case, so that an interrupted run leaves what it measured
            write_json(options.json, document(results, device, options.repeats))
    return int(any(result.wrong for result in results))


if __name__ == "__main__":
    sys.exit(main())
