"""Dispatch to a verb, and errors in one line instead of a stack trace."""

import importlib
import os
import sys
import warnings
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsella.errors import CapsellaError, unknown_name
from capsella.version import __version__

# Verb → what it does. Each lives in the module of its name under `capsella.cli`, a hyphen being an underscore, as
# `run(arguments)`; it is imported only when called, so that `capsella --help` answers at once.
VERBS = {
    "train": "train a recipe, evaluate it on the test images, and write a report",
    "evaluate": "error, precision, recall, calibration and confusion matrix of a run",
    "predict": "classify image files into a CSV, JSON lines or Parquet table",
    "robustness": "accuracy of one or more runs on turned, moved, coloured and noisy test images",
    "attack": "accuracy of runs under adversarial attacks, white-box, from one another, and on votes",
    "time": "how long networks take, forward and backward, beside one another",
    "compare": "capsule networks and CNNs on your images: which serves you better, or is it noise",
    "explain": "pictures of what a run sees: reconstructions, dimension tweaks, routing",
    "explore": "the same in the browser: turn a capsule's dials and watch what it believes",
    "demo-explore": "explore the run that `capsella train demo` left",
    "export": "write a run as ONNX or .pt2, and compare the file with PyTorch",
    "bench": "latency and throughput of a run or a network in every backend",
    "table": "run a table of a paper, row by row, and print its numbers beside ours",
    "figure": "draw a figure of a paper from the runs that it needs, with its numbers as JSON",
    "data": "list the image sources, or show what one holds",
    "models": "list the networks, or show the options of one",
    "info": "versions, hardware, and which routing backend runs",
}

# How often a thread that waits for others looks, before it sleeps: by default 300,000 times in libgomp, milliseconds
# for which it keeps the core from the very thread it waits for where another program is at work. Measured with two
# threads (LOG.md, L037).
SPINS = "10000"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `capsella` with `arguments` (without the program's name; default: the command line's)."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when PyTorch is imported, by a verb
    words = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(stderr=True, highlight=False)
    # Advice of the training framework to its own users; ours have other flags.
    warnings.filterwarnings("ignore", module="lightning_fabric")
    if not words or words[0] in ("-h", "--help"):
        _print_help()
    elif words[0] == "--version":
        print(__version__)
    else:
        try:
            _run(words[0], words[1:])
            sys.stdout.flush()
        except BrokenPipeError:  # whoever read our output, as `head` does, has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (CapsellaError, ValueError, OSError) as error:
            console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
            sys.exit(1)
        except KeyboardInterrupt:
            console.print("interrupted")
            sys.exit(130)


def _run(verb: str, arguments: list[str]) -> None:
    if verb not in VERBS:
        raise unknown_name("command", verb, VERBS)
    importlib.import_module(f"capsella.cli.{verb.replace('-', '_')}").run(arguments)


def _print_help() -> None:
    console = Console(highlight=False)
    console.print(f"[bold]capsella {__version__}[/]: a capsule-network workbench\n")
    console.print("usage: capsella COMMAND …\n       capsella --version\n")
    table = Table.grid(padding=(0, 2))
    for verb, does in VERBS.items():
        table.add_row(f"  [bold]{verb}[/]", does)
    console.print(table)
    console.print("\n`capsella COMMAND --help` explains each. Start with: capsella train demo")
