"""How much memory do the names of millions of files take in `capsella predict`?

`python -m benchmarks.names --out results/cluster/names.json` generates a list of 10 million names and goes through all
that `predict --out … --resume` does with names: it counts them, reads the journal of those that are done, and asks for
each whether it is. No image is read. The peak is of a process that does nothing else.
"""

import json
import multiprocessing
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from capsella.environment import environment
from capsella.evaluation.prediction.journal import Journal
from capsella.evaluation.prediction.listing import image_files
from capsella.files import write_json

CLASSES = ("no", "yes")


@dataclass(frozen=True)
class Study:
    """Generate a list and a journal, and measure."""

    out: Path
    """JSON."""
    names: int = 10_000_000
    """In the list."""
    done: int = 1_000_000
    """Of them, in the journal."""


def main(study: Study) -> None:
    """Measure in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        names, journal = Path(folder, "names.txt"), Path(folder, "t.csv.journal")
        with open(names, "w") as file:
            file.writelines(f"{_name(number)}\n" for number in range(study.names))
        with open(journal, "w") as file:
            file.write("{}\n")
            for number in range(study.done):
                file.write(json.dumps({"file": _name(number), "class": 0, "activations": [0.9, 0.1]}) + "\n")
        context = multiprocessing.get_context("spawn")
        receive, send = context.Pipe()
        process = context.Process(target=_measure, args=(names, journal, send))
        process.start()
        found = receive.recv()
        process.join()
    write_json(study.out, {"names": study.names, "done": study.done, **found, "environment": environment()})


def _name(number: int) -> str:
    return f"/data/plates/{number // 10_000:05}/well-{number:08}.png"


def _measure(names: Path, journal: Path, send: multiprocessing.connection.Connection) -> None:
    began, before = time.process_time(), _peak()
    total = sum(1 for _ in image_files([names]))
    with Journal(journal, {}, CLASSES, overwrite=False) as opened:
        left = sum(1 for name in image_files([names]) if name not in opened.files)
    seconds = time.process_time() - began
    send.send(
        {"total": total, "left": left, "mib_before": before, "mib_peak": _peak(), "processor_seconds": round(seconds)}
    )


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main(tyro.cli(Study))
