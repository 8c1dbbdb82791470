"""A prediction that can be killed or measured: `killed_job.py kill FOLDER OUT SEED` or `… peak FOLDER OUT`.

The package is imported once, and each job is a fork: a start costs seconds otherwise.
"""

import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from capsella.evaluation import predict_table
from capsella.models import ImageClassifier
from capsella.types import Output


class Slow(ImageClassifier):
    """Two classes, and a little time a batch."""

    def __init__(self, size: int, channels: int, seconds: float) -> None:
        super().__init__((size, size), channels, ("dark", "light"))
        self.seconds = seconds
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images, labels=None):
        time.sleep(self.seconds)
        mean = images.mean((1, 2, 3))
        return Output(self.scale * torch.stack([1 - mean, mean], 1))


def kill(folder: Path, out: Path, seed: int) -> None:
    """Ten times: start, and kill once some more is known; then let it end. Prints the journal's size at each kill."""
    numbers, journal = random.Random(seed), out.with_name(out.name + ".journal")
    size = 0
    for _ in range(10):
        job = os.fork()
        if job == 0:
            predict_table(Slow(4, 1, 0.003), [folder], out, batch_size=3, resume=True)
            os._exit(0)
        enough = size + numbers.randrange(2_000)
        while not journal.exists() or journal.stat().st_size <= enough:
            time.sleep(0.001)
        time.sleep(numbers.uniform(0, 0.004))
        os.kill(job, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(job, 0)[1])
        size = journal.stat().st_size
        print(size)
    if not out.exists():
        predict_table(Slow(4, 1, 0), [folder], out, resume=True)


def peak(folder: Path, out: Path) -> None:
    """Print the most memory that the prediction of each folder in `folder` takes, in KiB."""
    for number, part in enumerate(sorted(folder.iterdir())):
        job = os.fork()
        if job == 0:
            predict_table(Slow(64, 3, 0), [part], out.with_name(f"{number}-{out.name}"), workers=0)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
            os._exit(0)
        assert os.waitpid(job, 0)[1] == 0


if __name__ == "__main__":
    what, folder, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if what == "kill":
        kill(folder, out, int(sys.argv[4]))
    else:
        peak(folder, out)
