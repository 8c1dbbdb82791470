"""Shared parts: the tally, images with a short training on them, and commands in processes of their own."""

import contextlib
import importlib
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from capsella.cli import main
from capsella.cli.main import COMMANDS
from tests.trained import CLASSES, PER_CLASS, draw

SMALL = ["--size", "20", "--epochs", "1", "--batch-size", "8", "--accelerator", "cpu", "--precision", "32-true"]
"""Flags of a training of a second."""


def import_all() -> None:
    """Before the first fork, which would do it again each time."""
    import torch.onnx
    import torch.utils.tensorboard  # noqa: F401

    for verb in COMMANDS:
        importlib.import_module(f"capsella.cli.{verb}")


def make_images(folder: Path, per_class: int = PER_CLASS) -> Path:
    """Grey PNG files of 17×17 pixels, a subfolder a class."""
    random = np.random.default_rng(0)
    for kind in CLASSES:
        (folder / kind).mkdir(parents=True)
        for number in range(per_class):
            draw(kind, random).save(folder / kind / f"{kind}{number:02}.png")
    return folder


def make_run(images: Path, folder: Path) -> Path:
    """A network trained on them for an epoch."""
    ended = learned(command("train", "images-efficient", "--data", images, *SMALL, "--out", folder), 600)
    assert ended.code == 0, ended.said
    return folder


@dataclass
class Tally:
    """Counts of attempts by kind, findings with what it takes to see them again, and numbers for the report."""

    seed: int
    seconds: float
    began: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    measured: dict[str, float | str] = field(default_factory=dict)

    @property
    def has_time(self) -> bool:
        return time.monotonic() - self.began < self.seconds

    def found(self, what: str) -> None:
        print(f"  FOUND {what}", flush=True)
        self.findings.append(without_folders(what))

    def to_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "seconds": round(time.monotonic() - self.began, 1),
            "counts": dict(sorted(self.counts.items())),
            "measured": self.measured,
            "findings": self.findings,
        }


def without_folders(text: str) -> str:
    """Shorten absolute paths, which mean nothing on another machine, as in …/report.html."""
    return re.sub(r"(?<![\w.~\-:/])(-I|)(?:/[\w.+\-]+)+/", r"\1…/", text)


class Ended(NamedTuple):
    """How a process ended. code: negative for a signal, None if it ran out of time. seconds: processor time."""

    code: int | None
    seconds: float
    megabytes: float
    said: str

    @property
    def complaint(self) -> str | None:
        """Return what is wrong with how a command ended that got bad files; None if nothing is."""
        if self.code is None:
            return f"took more than {self.seconds:.0f} s"
        if "Traceback" in self.said or self.code not in (0, 1, 2, 130):
            return f"exit {self.code}: {self.said.strip()[-300:]}"
        if self.code and "error:" not in self.said and "interrupted" not in self.said:
            return f"exit {self.code} without a sentence: {self.said.strip()[-300:]!r}"
        return None


def forked(work: Callable[[], object], most_seconds: float, environment: dict[str, str] | None = None) -> Ended:
    """Do something in a fork of this process, which has imported the package already: a start costs seconds."""
    said = Path(tempfile.gettempdir()) / f"stress-{os.getpid()}.txt"
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_a_command(work, said, environment or {})
    while True:
        process, status, used = os.wait4(child, os.WNOHANG)
        seconds = time.monotonic() - began
        if process:
            text = said.read_text(errors="replace")
            busy = used.ru_utime + used.ru_stime
            return Ended(os.waitstatus_to_exitcode(status), busy, used.ru_maxrss / 1024, text)
        if seconds > most_seconds:
            os.kill(child, signal.SIGKILL)
            os.wait4(child, 0)
            return Ended(None, most_seconds, 0, said.read_text(errors="replace"))
        time.sleep(0.002)


def learned(work: Callable[[], object], most_seconds: float, environment: dict[str, str] | None = None) -> Ended:
    """`forked`; then this process imports what the work imported, so that no later fork has to: most of its seconds."""
    names = Path(tempfile.gettempdir()) / f"stress-modules-{os.getpid()}.txt"

    def telling() -> None:
        try:
            work()
        finally:
            names.write_text("\n".join(sys.modules))

    ended = forked(telling, most_seconds, environment)
    for name in names.read_text().splitlines() if names.exists() else []:
        if name not in sys.modules:
            with contextlib.suppress(Exception):  # not by itself: then each fork does it anew
                importlib.import_module(name)
    names.unlink(missing_ok=True)
    return ended


def _be_a_command(work: Callable[[], object], said: Path, environment: dict[str, str]) -> None:
    """In the child: never returns."""
    code = 0
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
        os.environ.update(environment)
        file = os.open(said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(*words: object) -> Callable[[], None]:
    """`capsella WORDS…`, to be forked."""
    return lambda: main([str(word) for word in words])


def fresh(path: Path) -> Path:
    """A folder with nothing in it."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path
