"""Interruptions inside one process; tests/cli has the kill -9."""

import csv
import math
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from capsella.data import PairData
from capsella.routing import RandomRouting
from capsella.training import (
    AugmentOptions,
    OptimizerOptions,
    TrainingDivergedError,
    resume,
)
from capsella.training.augment import Augment

TIMES = ("images_per_second", "seconds")
QUIET = Console(quiet=True)


def metrics(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return [{key: value for key, value in row.items() if key not in TIMES} for row in csv.DictReader(file)]


def poison_step(monkeypatch, step):
    """The images of one training step become NaN; steps count from 1."""
    forward, calls = Augment.forward, iter(range(1, 10**6))
    monkeypatch.setattr(
        Augment, "forward", lambda self, images: forward(self, images) * (math.nan if next(calls) == step else 1)
    )


def finite(state):
    return all(tensor.isfinite().all() for tensor in state["model"].values())


def assert_equal(first, second):
    """Two states of tensors, numbers, lists and dictionaries are equal."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for name in first:
            if name not in TIMES:
                assert_equal(first[name], second[name])
    elif isinstance(first, list):
        for item, other in zip(first, second, strict=True):
            assert_equal(item, other)
    else:
        assert torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


def pairs(recipe):
    data = PairData(of="digits", size=8, pair_shift=2, validation_pairs=40, test_pairs=60)
    return replace(recipe, data=data, epoch_images=50, augment=AugmentOptions())


# In the first epoch and in the second one; each with a state of its own that must resume.
@pytest.mark.parametrize(
    ("step", "change"),
    [
        (3, lambda recipe: recipe),
        (8, lambda recipe: replace(recipe, optimizer=OptimizerOptions(ema=0.9))),
        (10, lambda recipe: replace(recipe, optimizer=OptimizerOptions(method="sgd"))),
        (11, pairs),
        (14, lambda recipe: recipe.with_model(routing=RandomRouting())),
    ],
    ids=["adam", "average", "sgd", "pairs", "random routing"],
)
def test_nan_stops_the_run_and_it_resumes_as_if_nothing_had_been(
    step, change, tiny, quiet_train, last_checkpoint, monkeypatch
):
    recipe = change(tiny(deterministic=True))
    unbroken = quiet_train(recipe, "unbroken").folder
    with monkeypatch.context() as patch:
        poison_step(patch, step)
        with pytest.raises(TrainingDivergedError, match=f"epoch {(step + 6) // 7}, step {step}") as error:
            quiet_train(recipe, "broken")
    broken = unbroken.parent / "broken"
    assert str(broken / "last.ckpt") in str(error.value)
    state = last_checkpoint(broken)
    assert state["progress"]["step"] == (0 if step < 8 else 7)
    assert finite(state)
    resumed = resume(broken, console=QUIET)
    assert (broken / "model.safetensors").read_bytes() == (unbroken / "model.safetensors").read_bytes()
    assert_equal(last_checkpoint(broken), last_checkpoint(unbroken))
    assert metrics(broken) == metrics(unbroken)
    assert resumed.recipe == recipe


def test_nan_that_only_validation_sees(tiny, quiet_train, last_checkpoint, tmp_path):
    """With one step per epoch, the weights it leaves are finite but useless, and must not become the best."""
    with pytest.raises(TrainingDivergedError, match="validation loss"):
        quiet_train(tiny(epochs=1, batch_size=50, optimizer=OptimizerOptions(learning_rate=1e30)))
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert last_checkpoint(tmp_path / "run")["progress"]["step"] == 0


def test_a_finished_run_is_returned_untouched_even_without_its_images(run, monkeypatch):
    monkeypatch.setattr("capsella.training.loop.load_run_splits", None)
    monkeypatch.setattr("capsella.training.loop.Trainer", None)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file()}
    resume(run, console=QUIET)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file()} == before
    (run / "last.ckpt").unlink()
    assert resume(run).folder == run
