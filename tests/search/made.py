"""A search so small that it takes seconds: a few digits, a small network, nine steps."""

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

from capsella.data import DataOptions, load_data
from capsella.losses import LossOptions
from capsella.search import Choice, Images, Range, Search, SearchOptions, Space, length, open_search, work
from capsella.training import ModelOptions, Recipe
from capsella.training.loop import Trainer
from capsella.training.timing import StepTime

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


def an_epoch_takes(monkeypatch, seconds):
    """By what is timed before a search: all of it in the steps of training."""

    def time_of(recipe, images, machine):
        return StepTime(seconds / length._steps_an_epoch(recipe, images), 0.0), 0.0

    monkeypatch.setattr(length, "time_of", time_of)


def opened(folder: Path, recipe: Recipe = RECIPE, **changes) -> Search:
    options = dataclasses.replace(OPTIONS, out=folder, **changes)
    return open_search(recipe, "tiny", options, SPACE, images=Images(read))


def die_at(name: str, epoch: int, batch: int) -> None:
    """Let this process be killed in the middle of an epoch of a run."""
    step = Trainer._train_step

    def deadly(self, chosen):
        if (self.files.path.name, self.progress.epoch + 1, self.progress.batch + 1) == (name, epoch, batch):
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, chosen)

    Trainer._train_step = deadly


if __name__ == "__main__":  # a worker in a process of its own
    # its folder, and as JSON: seconds of grace, and that each job waits at its end; batch size, options, where it is
    # killed
    folder, words = Path(sys.argv[1]), json.loads(sys.argv[2])
    from capsella.search import study, worker

    study.Study.open.__func__.__defaults__ = (0, words.get("grace", 8))
    train_to = worker.train_to
    if "dies" in words:
        die_at(*words["dies"])

    def slow(recipe, run, epochs, *others):
        found = train_to(recipe, run, epochs, *others)
        with open(folder / "trained.txt", "a") as log:
            log.write(f"{os.getpid()} {run.name} {epochs} {found.epochs}\n")
        time.sleep(words.get("waits", 0.0))
        return found

    worker.train_to, worker.POLL = slow, 0.2
    search = opened(folder, dataclasses.replace(RECIPE, batch_size=words.get("batch", 20)), **words.get("options", {}))
    (folder / f"{os.getpid()}.ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
    work(search)
