"""Interruptions inside one process; tests/cli has the kill -9."""

import csv
import json
import math
import threading
import zipfile
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from capsella.data import epoch_batches
from capsella.errors import CapsellaError
from capsella.routing import RandomRouting
from capsella.training import Machine, OptimizerOptions, TrainingDivergedError, devices, load_run, resume, train
from capsella.training.augment import Augment
from capsella.training.checkpoint import Progress, read_progress
from capsella.training.loop import Trainer
from capsella.training.run import RunFolder

TIMES = ("images_per_second", "seconds")


def metrics(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return [{key: value for key, value in row.items() if key not in TIMES} for row in csv.DictReader(file)]


def poison_step(monkeypatch, step):
    """The images of one training step become NaN; steps count from 1."""
    usual, calls = Augment.forward, iter(range(1, 10**6))

    def forward(self, images):
        return usual(self, images) * (math.nan if next(calls) == step else 1)

    monkeypatch.setattr(Augment, "forward", forward)


def finite(state):
    return all(tensor.isfinite().all() for tensor in state["model"].values())


def assert_equal_states(first, second):
    assert first.keys() == second.keys() == {"model", "optimizer", "progress"}
    assert all(torch.equal(first["model"][name], second["model"][name]) for name in second["model"])
    for number, moments in second["optimizer"]["state"].items():
        assert all(torch.equal(first["optimizer"]["state"][number][key], value) for key, value in moments.items())
    assert first["optimizer"]["param_groups"] == second["optimizer"]["param_groups"]


# In mid-epoch, at the end of an epoch, and in the second one.
@pytest.mark.parametrize(("step", "method"), [(3, "adam"), (7, "adam"), (10, "adam"), (14, "adam"), (10, "sgd")])
def test_nan_stops_the_run_and_it_resumes_as_if_nothing_had_been(
    step, method, tiny, quiet_train, last_checkpoint, monkeypatch
):
    recipe = tiny(deterministic=True, optimizer=OptimizerOptions(method=method))
    unbroken = quiet_train(recipe, "unbroken", checkpoint_seconds=0.0).folder
    with monkeypatch.context() as patch:
        poison_step(patch, step)
        with pytest.raises(TrainingDivergedError) as error:
            quiet_train(recipe, "broken", checkpoint_seconds=0.0)
    broken = unbroken.parent / "broken"
    assert f"the loss is nan at epoch {(step + 6) // 7}, step {step} (learning rate 0.001)" in str(error.value)
    assert str(broken / "last.ckpt") in str(error.value)

    state = last_checkpoint(broken)
    assert state["progress"]["step"] == step - 1
    assert finite(state)
    resumed = resume(broken, console=Console(quiet=True))
    assert (broken / "model.safetensors").read_bytes() == (unbroken / "model.safetensors").read_bytes()
    assert_equal_states(last_checkpoint(broken), last_checkpoint(unbroken))
    assert metrics(broken) == metrics(unbroken)
    assert resumed.recipe == recipe


def test_a_run_goes_on_on_another_machine(tiny, quiet_train, tmp_path):
    recipe = tiny(epochs=2)
    whole, folder = quiet_train(recipe, "whole").folder, tmp_path / "moved"
    begun = Machine(accelerator="cpu", devices=1, threads=2)
    train(recipe, folder, until=1, machine=begun, console=Console(quiet=True))
    files, moved = RunFolder(folder), Machine(accelerator="cpu", threads=1)
    before = json.loads((folder / "config.json").read_text())
    resume(folder, machine=moved, console=Console(quiet=True))
    assert files.read_machine() == moved
    assert json.loads((folder / "config.json").read_text()) == before | {"machine": moved.to_dict()}
    assert read_progress(files.checkpoint).epoch == read_progress(whole / "last.ckpt").epoch == 2


def test_events_of_every_epoch_outlast_an_interruption(tiny, quiet_train):
    """Each of them is on the disk when its epoch is over, and a resumed run takes none away."""
    recipe = tiny(epochs=3)
    folder = quiet_train(recipe, "whole").folder
    paused = folder.parent / "paused"
    train(recipe, paused, until=2, machine=Machine(accelerator="cpu"), console=Console(quiet=True))
    resume(paused, console=Console(quiet=True))
    steps = []
    for run in (folder, paused):
        events = EventAccumulator(str(run / "events")).Reload()
        steps.append([event.step for event in events.Scalars("train/loss")])
    assert steps == [[7, 14, 21]] * 2


def test_random_routing_resumes_too(tiny, quiet_train, monkeypatch):
    recipe = tiny(epochs=1)
    recipe = recipe.with_model(routing=RandomRouting())
    unbroken = quiet_train(recipe, "unbroken", checkpoint_seconds=0.0).folder
    with monkeypatch.context() as patch:
        poison_step(patch, 4)
        with pytest.raises(TrainingDivergedError):
            quiet_train(recipe, "broken", checkpoint_seconds=0.0)
    resume(unbroken.parent / "broken", console=Console(quiet=True))
    assert metrics(unbroken.parent / "broken") == metrics(unbroken)


def test_without_a_timed_checkpoint_a_run_resumes_from_its_start(tiny, quiet_train, last_checkpoint, monkeypatch):
    recipe = tiny()
    unbroken = quiet_train(recipe, "unbroken", checkpoint_seconds=1e9).folder
    with monkeypatch.context() as patch:
        poison_step(patch, 3)
        with pytest.raises(TrainingDivergedError):
            quiet_train(recipe, "broken", checkpoint_seconds=1e9)
    broken = unbroken.parent / "broken"
    (broken / ".last.ckpt.123.part").write_bytes(b"what a killed process was about to write")
    assert last_checkpoint(broken)["progress"]["step"] == 0
    resume(broken, console=Console(quiet=True))
    assert metrics(broken) == metrics(unbroken)
    assert not list(broken.glob(".*"))


def test_a_learning_rate_far_too_high(tiny, quiet_train, last_checkpoint, tmp_path):
    threads = set(threading.enumerate())
    with pytest.raises(TrainingDivergedError, match=r"at epoch 1, step [23] \(learning rate 1e\+30\).*--gradient-clip"):
        quiet_train(tiny(optimizer=OptimizerOptions(learning_rate=1e30)))
    assert set(threading.enumerate()) <= threads  # TensorBoard writes its events from one
    assert finite(last_checkpoint(tmp_path / "run"))


def test_nan_that_only_validation_sees(tiny, quiet_train, last_checkpoint, tmp_path):
    """One step an epoch: the weights it leaves are finite but useless, and must not become the best."""
    recipe = tiny(epochs=1, batch_size=50, optimizer=OptimizerOptions(learning_rate=1e30))
    with pytest.raises(TrainingDivergedError, match=r"the validation loss is (nan|inf) at epoch 1, step 1 "):
        quiet_train(recipe)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert last_checkpoint(tmp_path / "run")["progress"]["step"] == 0


def test_a_finished_run_is_returned_untouched(tiny, quiet_train):
    run = quiet_train(tiny())
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.folder.rglob("*") if path.is_file()}
    resumed = resume(run.folder, console=Console(quiet=True))
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == {**before}
    assert {path for path in run.folder.rglob("*") if path.is_file()} == set(before)
    assert all(torch.equal(a, b) for a, b in zip(resumed.model.parameters(), run.model.parameters(), strict=True))


def test_a_run_that_ended_before_its_summary_gets_one(tiny, quiet_train):
    run = quiet_train(tiny())
    (run.folder / "summary.json").unlink()
    weights = (run.folder / "model.safetensors").read_bytes()
    resume(run.folder, console=Console(quiet=True))
    assert (run.folder / "summary.json").exists()
    assert (run.folder / "model.safetensors").read_bytes() == weights
    assert load_run(run.folder).recipe == run.recipe


def test_a_bit_that_changed_in_a_checkpoint_is_no_other_weight(tiny, quiet_train):
    """PyTorch compares no checksums; and it is told before any image is read."""
    path = quiet_train(tiny()).folder / "last.ckpt"
    (path.parent / "summary.json").unlink()
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda part: part.file_size)
    content[largest.header_offset + 1000] ^= 1
    path.write_bytes(bytes(content))
    assert torch.load(path, weights_only=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capsella.training.images.load_data", None)
        with pytest.raises(CapsellaError, match="is damaged or cut off"):
            resume(path.parent, console=Console(quiet=True))


def test_schedules_do_not_depend_on_the_number_of_devices():
    """Of 100 images in batches of 32, four devices have three steps an epoch, and one has four."""
    alone, four = (len(epoch_batches(torch.arange(100), 32, devices)) for devices in (1, 4))
    assert (alone, four) == (4, 3)
    assert [Progress(epoch=40, batch=batch).position(alone, alone) for batch in range(4)] == [160, 161, 162, 163]
    assert Progress(epoch=40).position(four, alone) == 160
    assert Progress(epoch=49, batch=2).position(four, alone) == pytest.approx(198.67, abs=0.01)


def test_a_finished_run_is_returned_where_its_images_are_gone(tiny, quiet_train, monkeypatch):
    run = quiet_train(tiny())
    monkeypatch.setattr("capsella.training.loop.images_of", None)
    monkeypatch.setattr("capsella.training.loop.Trainer", None)
    assert resume(run.folder, console=Console(quiet=True)).recipe == run.recipe


@pytest.mark.parametrize("images", [9, 10, 18, 32, 33])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (1, 4), (4, 1), (2, 2)])
def test_every_image_of_an_epoch_is_seen_however_many_processes_go_on(tiny, tmp_path, images, before, after):
    """Where fewer processes left a rest that is too small for the others, some images are seen twice."""
    trainer = untrained(tiny(batch_size=4, epoch_images=images), tmp_path)
    whole = epoch_batches(torch.arange(images), 4, before)
    trainer.fabric = SimpleNamespace(world_size=after)
    order = torch.cat(trainer._epoch_batches())
    for batch in range(len(whole) + 1):
        trainer.progress = Progress(batch=batch, images=sum(map(len, whole[:batch])))
        left = trainer._epoch_batches()
        done, rest = order[: trainer.progress.images], torch.cat(left) if left else order[:0]
        assert torch.equal(rest[-(images - len(done)) :], order[len(done) :]) if len(done) < images else not left
        assert len(rest) - (images - len(done)) < 2 * after
        if before == after:
            assert list(map(len, left)) == list(map(len, whole[batch:]))
        assert all(len(one) >= min(2 * after, 4, images) for one in left)


def untrained(recipe, folder):
    fabric = devices.launch(recipe, Machine(accelerator="cpu"))
    return Trainer(recipe, Machine(accelerator="cpu"), RunFolder(folder), "run", fabric, Console(quiet=True))
