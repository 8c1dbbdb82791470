"""Dispatch to a verb, and errors in one line instead of a stack trace."""

import codecs
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TextIO

from rich.console import Console
from rich.markup import escape

from capsella.cli.help_texts import join_lines, plain_defaults
from capsella.cli.screen import console
from capsella.errors import CapsellaError, CapsellaWarning, memory_errors, unknown_name
from capsella.version import __version__

# Group → verb → what it does, short enough for 80 columns. Each verb lives in the module of its name under
# `capsella.cli`, as `run(arguments)`; it is imported only when called, so that `capsella --help` answers at once.
GROUPS = {
    "train and judge": {
        "train": "train a recipe, test it once, and write a report",
        "evaluate": "error, precision, recall, calibration and confusions of a run",
        "calibrate": "fit probabilities for a run that was trained without them",
        "compare": "capsule networks or CNNs: which serve your images better?",
        "search": "better hyper-parameters and networks, by validation images",
        "transfer": "train in one laboratory, test in another, each left out in turn",
        "adapt": "adapt a run to another laboratory with a few labelled images",
        "robustness": "accuracy on turned, moved, coloured and noisy test images",
        "attack": "accuracy under adversarial attacks",
    },
    "look inside": {
        "explain": "draw what a run sees: reconstructions, tweaks, routing",
        "explore": "the same in the browser: turn a capsule's dials",
        "share": "one HTML page of it, with live dials, that needs no server",
    },
    "ship": {
        "predict": "classify image files into a CSV, JSON lines or Parquet table",
        "export": "write a run as ONNX or .pt2, and check the file against PyTorch",
        "bench": "how long networks take, to classify or to train",
    },
    "papers": {
        "table": "run a table of a paper, and print its numbers beside ours",
        "figure": "run what a figure of a paper needs, and draw it",
        "reproduce": "all tables and figures by a plan; one page of what they support",
    },
    "lists and machine": {
        "models": "list the networks, or show one",
        "recipes": "list the recipes, or show one",
        "data": "list the image sources, show what one holds, or write a split",
        "info": "versions, hardware, which routing backend and precision run",
    },
}
VERBS = [verb for verbs in GROUPS.values() for verb in verbs]

GO_ON = ("compare", "transfer", "table", "figure", "reproduce")
"""Verbs that go on where they stopped when they are called again, and do not say so themselves."""

# How often a thread that waits for others looks, before it sleeps: by default 300,000 times in libgomp, milliseconds
# for which it keeps the core from the very thread it waits for where another program is at work. Measured with two
# threads.
SPINS = "10000"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `capsella` with `arguments` (without the program's name; default: the command line's)."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when PyTorch is imported, by a verb
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal of few letters has no arrows, and names may not be UTF-8
        is_utf8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "replace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        _print_help()
    elif words[0] in ("--version", "version"):
        print(__version__)
    else:
        errors = console(stderr=True)
        try:
            with warnings.catch_warnings():
                # A sentence of ours says that an image is too large.
                warnings.filterwarnings("ignore", message=r"Image size \(\d+ pixels\) exceeds limit")
                # Advice of the training framework to its own users; ours have other flags.
                warnings.filterwarnings("ignore", module="lightning_fabric")
                logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)
                warnings.showwarning = partial(_show_warning, errors, warnings.showwarning)
                with memory_errors(f"capsella {words[0]}"):
                    _run(words[0], words[1:])
            if sys.stdout is not None:  # it may be closed
                sys.stdout.flush()
        except BrokenPipeError:  # whoever read our output, as `head` does, has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (Exception, KeyboardInterrupt) as error:
            sys.exit(_say(errors, error, words))


def _say(errors: Console, error: BaseException, words: Sequence[str]) -> int:
    """A sentence for the error, and the status to exit with; raises it again where it is a fault of ours."""
    if _is_interruption(error):
        errors.print(f"interrupted{_goes_on(words)}")
        return 130
    if isinstance(error, (CapsellaError, ValueError, OSError)):
        errors.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    raise error


def _goes_on(words: Sequence[str]) -> str:
    """What goes on with an interrupted command, if anything does."""
    flags = {word.partition("=")[0] for word in words}
    if words[0] == "predict" and "--out" in flags:
        return f"; the same command with --resume {'in place of --overwrite ' if '--overwrite' in flags else ''}goes on"
    return "; the same command goes on" if words[0] in GO_ON and "--dry-run" not in flags else ""


def _is_interruption(error: BaseException | None) -> bool:
    """Ctrl-C, or an error that came of it: PyTorch's writer of files fails by itself when it is left in the middle."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _run(verb: str, arguments: list[str]) -> None:
    if verb not in VERBS:
        raise unknown_name("command", verb, VERBS)
    join_lines()
    with plain_defaults():
        importlib.import_module(f"capsella.cli.{verb}").run(arguments)


def _show_warning(
    errors: Console,
    usual: Callable[..., None],
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Ours in one line, without the line of code that they come from; others as usual."""
    if issubclass(category, CapsellaWarning):
        errors.print(f"[bold yellow]warning:[/] {escape(str(message))}", soft_wrap=True)
    else:
        usual(message, category, filename, lineno, file, line)


def _print_help() -> None:
    out = console()
    out.print(f"[bold]capsella {__version__}[/]: a capsule-network workbench\n")
    print("usage: capsella COMMAND …\n       capsella --version")
    for group, verbs in GROUPS.items():
        out.print(f"\n[bold]{group}[/]")
        for verb, does in verbs.items():
            print(f"  {verb:<11} {does}")
    print("\n`capsella COMMAND --help` explains each. Start with: capsella train demo")
