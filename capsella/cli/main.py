"""Runs a command, and prints errors and warnings as one line each instead of a stack trace."""

import codecs
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from capsella.cli.screen import console
from capsella.errors import CapsellaError, CapsellaWarning, memory_errors, unknown_name
from capsella.plugins import VARIABLE, load_plugin
from capsella.version import __version__

# Task → command → what it does, in at most 66 characters. A command is the function `run(arguments)` of the module with
# its name in `capsella.cli`, which is imported only when the command is called.
GROUPS = {
    "I have images": {
        "train": "train one network, test it once and write a report",
        "compare": "compare capsule networks with CNNs and recommend one",
        "search": "tune hyper-parameters on the validation images",
        "data": "show what a folder or a data set contains, or write a split",
    },
    "I have a trained network": {
        "evaluate": "error rate, calibration, robustness, attacks, other domains",
        "predict": "classify image files into a CSV, JSON Lines or Parquet table",
        "explore": "look inside, in the browser or as pictures of your images",
        "share": "write one interactive HTML page that works without a server",
        "export": "write ONNX or .pt2 and check the file against PyTorch",
        "adapt": "adapt the network to another domain with a few labelled images",
        "bench": "measure the speed of inference",
    },
    "I study papers": {
        "papers": "run a published table or figure, or reproduce a whole paper",
        "list": "list models, recipes and data sets, or show one of them",
    },
    "This machine": {
        "info": "show versions, hardware, routing backend and precision",
    },
}
COMMANDS = [name for group in GROUPS.values() for name in group]
OPENINGS = {  # printed before PyTorch is imported, by commands that take long to start
    "explore": "opening the run and classifying its test images …",
    "info": "inspecting this machine; the first time, bfloat16 is timed for some seconds …",
}
CONTINUES = ("compare", "papers")  # commands that continue when called again

# How often a waiting thread spins before it sleeps. libgomp's default of 300,000 keeps a core busy for milliseconds
# that other programs could use (measured with two threads).
SPIN_COUNT = "10000"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `capsella` with `arguments`, by default those of the command line."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read when PyTorch is imported, by a command
    for stream in (sys.stdout, sys.stderr):  # characters that a stream cannot encode must not stop a command
        if isinstance(stream, io.TextIOWrapper):
            is_utf8 = codecs.lookup(stream.encoding).name == "utf-8"
            stream.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    errors = console(stderr=True)
    try:
        with _short_warnings(errors), memory_errors(f"capsella {words[0]}"):
            _run(words[0], words[1:])
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output, e.g. `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (Exception, KeyboardInterrupt) as error:
        sys.exit(_report(errors, error, words))


def _run(name: str, arguments: list[str]) -> None:
    if name in ("-h", "--help"):
        _print_help()
        return
    if name == "--version":
        print(__version__)
        return
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    if name in OPENINGS and not {"-h", "--help", "--help-all"} & set(arguments):
        print(OPENINGS[name], file=sys.stderr, flush=True)
    if plugin := os.environ.get(VARIABLE):
        load_plugin(Path(plugin))
    importlib.import_module(f"capsella.cli.{name}").run(arguments)


def _report(errors: Console, error: BaseException, words: Sequence[str]) -> int:
    """Print an error and return the exit code; raise it again if it is a bug."""
    if _is_interruption(error):
        errors.print(f"interrupted{_how_to_continue(words)}")
        return 130
    if isinstance(error, (CapsellaError, ValueError, OSError)):
        errors.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    raise error


def _how_to_continue(words: Sequence[str]) -> str:
    flags = {word.partition("=")[0] for word in words}
    if words[0] == "predict" and "--out" in flags and "--label-next" not in flags:
        replaced = "instead of --overwrite " if "--overwrite" in flags else ""
        return f"; run the same command with --resume {replaced}to continue"
    return "; run the same command to continue" if words[0] in CONTINUES and "--dry-run" not in flags else ""


def _is_interruption(error: BaseException | None) -> bool:
    """Return True for Ctrl-C, and for errors caused by it: PyTorch's file writer fails by itself when interrupted."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


@contextmanager
def _short_warnings(errors: Console) -> Iterator[None]:
    """Print our warnings as one line, without their place in the code, and others as Python does."""
    with warnings.catch_warnings():
        # Too large images raise our own error instead.
        warnings.filterwarnings("ignore", message=r"Image size \(\d+ pixels\) exceeds limit")
        # Lightning Fabric's advice refers to its own flags, which have other names here.
        warnings.filterwarnings("ignore", module="lightning_fabric")
        logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)
        default = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: object, **others: object) -> None:
            if issubclass(category, CapsellaWarning):
                errors.print(f"[bold yellow]warning:[/] {escape(str(message))}", soft_wrap=True)
            else:
                default(message, category, *where, **others)  # type: ignore[arg-type]

        warnings.showwarning = show
        yield


def _print_help() -> None:
    out = console()
    out.print(f"[bold]capsella {__version__}[/]: capsule networks and CNNs, compared on your own images\n")
    print("usage: capsella COMMAND …\n       capsella --version")
    for group, commands in GROUPS.items():
        out.print(f"\n[bold]{group}[/]")
        for name, purpose in commands.items():
            print(f"  {name:<9} {purpose}")
    print("\n`capsella COMMAND --help` explains it. Start with: capsella compare IMAGES")
