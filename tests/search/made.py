"""A search so small that it takes seconds: a few digits, a small network, nine steps."""

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from capsella.data import NamedData, load_data
from capsella.experiments.search import Search, SearchOptions, Space, open_search, run_search
from capsella.losses import LossOptions
from capsella.training import ModelOptions, Recipe
from capsella.training.loop import Trainer

RECIPE = Recipe(
    model=ModelOptions("he2016_resnet10", {"width": 6}),
    data=NamedData("digits", size=17, per_class=2, validation=0.02, test_per_class=1),
    loss=LossOptions(name="cross_entropy"),
    epochs=9,
    batch_size=20,
)
SPACE = Space(
    {
        "optimizer.learning_rate": FloatDistribution(1e-4, 1e-2, log=True),
        "augment.shift": IntDistribution(0, 2),
        "model.width": CategoricalDistribution([4, 6]),
    }
)
OPTIONS = SearchOptions(trials=6, finalists=2, seeds=2)


def opened(folder: Path, recipe: Recipe = RECIPE, space: Space = SPACE, **changes) -> Search:
    return open_search(recipe, "tiny", dataclasses.replace(OPTIONS, out=folder, **changes), space, splits=images())


def images():
    """Only 20 validation images: the smallest share of the source has more."""
    splits = load_data(RECIPE.data)
    few = splits.validation.subset(range(0, len(splits.validation), max(1, len(splits.validation) // 20)))
    return dataclasses.replace(splits, validation=few)


def states(search: Search) -> list[str]:
    return [trial.state.name for trial in search.trials()]


def die_at(name: str, epoch: int, batch: int) -> None:
    """Let this process be killed in the middle of an epoch of a run."""
    step = Trainer._train_step

    def deadly(self, chosen):
        if (self.files.path.name, self.progress.epoch + 1, self.batch + 1) == (name, epoch, batch):
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, chosen)

    Trainer._train_step = deadly


if __name__ == "__main__":  # a worker in a process of its own: its folder, and its words as JSON
    from capsella.experiments.search import trials

    folder, words = Path(sys.argv[1]), json.loads(sys.argv[2])
    if "dies" in words:
        die_at(*words["dies"])
    train_to = trials.train_to

    def logged(search, recipe, files, epochs):
        before = trials._epochs_of(files)
        train_to(search, recipe, files, epochs)
        with open(folder / "trained.txt", "a") as log:
            log.write(f"{os.getpid()} {files.path.name} {epochs} {epochs - before}\n")
        time.sleep(words.get("waits", 0.0))

    trials.train_to = logged
    recipe = dataclasses.replace(RECIPE, batch_size=words.get("batch", 20))
    search = opened(folder, recipe, **words.get("options", {}))
    (folder / f"{os.getpid()}.ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
    run_search(search)
