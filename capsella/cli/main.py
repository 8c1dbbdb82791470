"""Run a command, and turn errors into one line instead of a stack trace."""

import codecs
import importlib
import io
import logging
import os
import sys
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TextIO

from rich.console import Console
from rich.markup import escape

from capsella.cli.screen import console
from capsella.errors import CapsellaError, CapsellaWarning, memory_errors, unknown_name
from capsella.version import __version__

# Task → command → what it does, in at most 66 letters. A command is the function `run(arguments)` of the module of its
# name in `capsella.cli`, which is imported only when the command is called.
GROUPS = {
    "I have images": {
        "train": "train a network on them, test it once, and write a report",
        "compare": "capsule networks or CNNs: which serve these images better?",
        "search": "find better hyper-parameters, by validation images",
        "data": "show what a folder or a data set holds, or write a split",
    },
    "I have a trained network": {
        "evaluate": "error, calibration, robustness, attacks, images of another domain",
        "predict": "classify image files into a CSV, JSON lines or Parquet table",
        "explore": "look inside: a page in the browser, or pictures of your images",
        "share": "write one HTML page about it, with live dials, for others",
        "export": "write it as ONNX or .pt2, and check the file against PyTorch",
        "adapt": "adapt it to another laboratory with a few labelled images",
        "bench": "measure how long it takes, to classify or to train",
    },
    "I study papers": {
        "papers": "run a published table or figure, or reproduce a paper",
        "list": "list models, recipes and data sets, or show one",
    },
    "this machine": {
        "info": "versions, hardware, routing backend and precision",
    },
}
COMMANDS = [name for group in GROUPS.values() for name in group]
# Commands of before → what to call now.
REPLACED = {
    "attack": "evaluate RUN --attack",
    "calibrate": "evaluate RUN --calibrate",
    "explain": "explore RUN --data IMAGES --out FOLDER",
    "figure": "papers run NAME",
    "models": "list models",
    "recipes": "list recipes",
    "reproduce": "papers reproduce",
    "robustness": "evaluate RUN --robustness",
    "table": "papers run NAME",
    "transfer": "compare DOMAIN DOMAIN …",
}
# What commands that take long to start print before PyTorch is imported.
OPENINGS = {
    "explore": "opening the run, and showing its images to the network …",
    "info": "reading this machine; the first time, bfloat16 is measured for some seconds …",
}
CONTINUES = ("compare", "papers")  # commands that continue an interrupted call, and do not print so themselves

# How often a waiting thread spins before it sleeps. libgomp's default is 300,000 times, for milliseconds, in which the
# thread keeps the core from the one it waits for if another program is running. Measured with two threads.
SPIN_COUNT = "10000"
SIMILAR = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "±": "+/-", "×": "x", "·": "*", "→": "->", "…": "...", "≤": "<=", "≥": ">="}
    | {"°": " degrees", "ε": "epsilon", "β": "beta", "λ": "lambda", "µ": "u", "“": '"', "”": '"', "’": "'", "✗": "x"}
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `capsella` with `arguments`, by default the command line's."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read when PyTorch is imported, by a command
    _prepare_output()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        _print_help()
    elif words[0] in ("--version", "version"):
        print(__version__)
    else:
        errors = console(stderr=True)
        try:
            with warnings.catch_warnings():
                # An error of ours says that an image is too large.
                warnings.filterwarnings("ignore", message=r"Image size \(\d+ pixels\) exceeds limit")
                # Advice of the training framework to its own users; ours have other flags.
                warnings.filterwarnings("ignore", module="lightning_fabric")
                logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)
                warnings.showwarning = partial(_show_warning, errors, warnings.showwarning)
                with memory_errors(f"capsella {words[0]}"):
                    _run(words[0], words[1:])
            if sys.stdout is not None:  # it may be closed
                sys.stdout.flush()
        except BrokenPipeError:  # the reader of our output, e.g. `head`, has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (Exception, KeyboardInterrupt) as error:
            sys.exit(_report(errors, error, words))


def _prepare_output() -> None:
    """Print letters that the terminal lacks as similar ones, and file names that are not UTF-8 as their bytes."""
    codecs.register_error("similar", _similar_letters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_utf8 = codecs.lookup(stream.encoding).name == "utf-8"
            stream.reconfigure(errors="surrogateescape" if is_utf8 else "similar")


def _similar_letters(error: UnicodeError) -> tuple[bytes, int]:
    """Encode what an encoding lacks without losing the sign of a number: "−1 ± 2" becomes "-1 +/- 2"."""
    assert isinstance(error, UnicodeEncodeError)
    text = unicodedata.normalize("NFKD", error.object[error.start : error.end].translate(SIMILAR))
    plain = "".join(letter for letter in text if not unicodedata.combining(letter))
    return plain.encode(error.encoding, "replace"), error.end


def _run(name: str, arguments: list[str]) -> None:
    if name in REPLACED:
        raise CapsellaError(f"capsella {name} is now: capsella {REPLACED[name]}")
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    if name in OPENINGS and not {"-h", "--help", "--help-all"} & set(arguments):
        print(OPENINGS[name], file=sys.stderr, flush=True)
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
    if words[0] == "predict" and "--out" in flags:
        replaced = "in place of --overwrite " if "--overwrite" in flags else ""
        return f"; run the same command with --resume {replaced}to continue"
    return "; run the same command to continue" if words[0] in CONTINUES and "--dry-run" not in flags else ""


def _is_interruption(error: BaseException | None) -> bool:
    """Return True for Ctrl-C, and for errors caused by it: PyTorch's file writer fails by itself when interrupted."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _show_warning(
    errors: Console,
    default: Callable[..., None],
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print our warnings in one line, without the code that they come from, and others as Python does."""
    if issubclass(category, CapsellaWarning):
        errors.print(f"[bold yellow]warning:[/] {escape(str(message))}", soft_wrap=True)
    else:
        default(message, category, filename, lineno, file, line)


def _print_help() -> None:
    out = console()
    out.print(f"[bold]capsella {__version__}[/]: a capsule-network workbench\n")
    print("usage: capsella COMMAND …\n       capsella --version")
    for group, commands in GROUPS.items():
        out.print(f"\n[bold]{group}[/]")
        for name, purpose in commands.items():
            print(f"  {name:<9} {purpose}")
    print("\n`capsella COMMAND --help` explains a command. Start with: capsella train demo")
