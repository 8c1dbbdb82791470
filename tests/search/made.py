"""A search so small that it takes seconds: a few digits, a small network, nine steps."""

import dataclasses
import os
import sys
import time
from pathlib import Path

from capsella.data import DataOptions, load_data
from capsella.losses import LossOptions
from capsella.search import Choice, Images, Range, Search, SearchOptions, Space, open_search, work
from capsella.training import ModelOptions, Recipe

RECIPE = Recipe(
    model=ModelOptions("hinton2018_matrix_capsnet_small"),
    data=DataOptions(name="digits", size=17, per_class=2, validation=0.02, test_per_class=1),
    loss=LossOptions(name="cross_entropy"),
    epochs=9,
    batch_size=20,
)
SPACE = Space(
    {
        "optimizer.learning_rate": Range(1e-4, 1e-2, log=True),
        "augment.shift": Range(0, 2),
        "model.pose_elements": Choice(9, 16),
    }
)
OPTIONS = SearchOptions(trials=6, finalists=2, seeds=2, final=False)


def read(options: DataOptions):
    """Only 20 validation images: the smallest share of the source has more."""
    splits = load_data(options)
    few = splits.validation.subset(range(0, len(splits.validation), max(1, len(splits.validation) // 20)))
    return dataclasses.replace(splits, validation=few)


def opened(folder: Path, **changes) -> Search:
    return open_search(RECIPE, "tiny", dataclasses.replace(OPTIONS, out=folder, **changes), SPACE, images=Images(read))


if __name__ == "__main__":  # a worker in a process of its own: its folder, and seconds that each job waits at its end
    folder, waits = Path(sys.argv[1]), float(sys.argv[2])
    from capsella.search import study, worker

    study.GRACE = 3
    study.Study.open.__func__.__defaults__ = (0, 3)
    train_to = worker.train_to

    def slow(recipe, run, epochs, *others):
        found = train_to(recipe, run, epochs, *others)
        with open(folder / "trained.txt", "a") as log:
            log.write(f"{os.getpid()} {run.name} {epochs} {found.epochs}\n")
        time.sleep(waits)
        return found

    worker.train_to, worker.POLL = slow, 0.2
    search = opened(folder)
    (folder / f"{os.getpid()}.ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
    work(search)
