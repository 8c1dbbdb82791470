"""Run folders that are half written, damaged, malicious, or on a disk that is full."""

import errno
import os
import pickle
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from capsella.data import DataOptions
from capsella.errors import CapsellaError
from capsella.training import (
    Machine,
    ModelOptions,
    Recipe,
    load_run,
    new_run_folder,
    resume,
    run_names,
)
from capsella.training.run import RunFolder, _found
from tests.training.made import message_of

HEADER = "epoch,learning_rate,train_loss,validation_loss,validation_error\n"


@pytest.fixture
def run(tiny, quiet_train):
    return quiet_train(tiny(epochs=1)).folder


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_no_run_at_all(tmp_path):
    missing = tmp_path / "nowhere"
    for function in (load_run, resume):
        assert message_of(function, missing) == f"{missing} is not a run folder: it has no config.json"
    file = tmp_path / "file"
    file.write_text("")
    assert "is not a run folder" in message_of(load_run, file)


def test_runs_near_a_folder_that_is_none(tmp_path):
    for name in ("cells/fold0", "cells/fold1", "cells/fold2", "cells/fold3", "digits"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    first = ", ".join(str(tmp_path / "cells" / f"fold{k}") for k in range(3))
    assert message_of(load_run, tmp_path / "cells").endswith(f"; it holds 4 runs: {first}, …")
    assert message_of(load_run, tmp_path / "digit").endswith("; did you mean digits?")
    assert message_of(load_run, tmp_path / "xyz").endswith(f"; {tmp_path} holds 1 run")


def test_only_the_config_is_there(run):
    for path in run.iterdir():
        if path.name != "config.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert str(run / "model.json") in message_of(load_run, run)
    assert message_of(resume, run) == (
        f"{run / 'last.ckpt'} does not exist: this training never began; start it anew in another folder"
    )


def test_a_training_whose_checkpoint_is_gone_cannot_go_on(run):
    for name in ("last.ckpt", "summary.json"):
        (run / name).unlink(missing_ok=True)
    assert message_of(resume, run) == (
        f"{run / 'last.ckpt'} does not exist: its training cannot go on; start it anew in another folder"
    )


def test_a_training_without_a_whole_epoch_is_told(run):
    (run / "model.json").unlink()
    (run / "last.ckpt").touch()
    assert message_of(load_run, run) == (
        f"{run}: this training has kept no weights yet; capsella train --resume {run} goes on"
    )


def test_a_finished_run_without_its_checkpoint_is_returned(run):
    """As those of tables, of `--seeds` and of `--folds` are."""
    (run / "last.ckpt").unlink(missing_ok=True)
    assert (run / "summary.json").exists()
    assert resume(run).folder == run
    (run / "adapted.json").write_text("{}")
    assert message_of(resume, run) == (f"{run} holds an adapted run: nothing is left to do; adapt its run anew instead")


def test_weights_that_are_missing_or_cut_off(run):
    cut(run / "model.safetensors")
    assert f"{run / 'model.safetensors'} is no readable .safetensors file" in message_of(load_run, run)
    (run / "model.safetensors").unlink()
    assert f"{run / 'model.safetensors'} does not exist" in message_of(load_run, run)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"name": "x", "recipe": {}, "environment": 1}', "\xff"])
def test_a_damaged_config(run, text):
    (run / "config.json").write_text(text, encoding="latin-1")
    for function in (load_run, resume):
        assert message_of(function, run).startswith(str(run / "config.json"))


def test_a_config_cut_off(run):
    cut(run / "config.json")
    assert message_of(RunFolder(run).read_config).startswith(f"{run / 'config.json'} is damaged: JSONDecodeError")


def test_a_recipe_of_another_version(run):
    path = run / "config.json"
    path.write_text(path.read_text().replace('"epochs"', '"rounds"'))
    assert message_of(load_run, run).startswith(f"{path}: not a recipe of this version of capsella: ")


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"text"),
    ],
)
def test_a_damaged_checkpoint(run, damage):
    (run / "summary.json").unlink()
    damage(run / "last.ckpt")
    message = message_of(resume, run)
    assert message.startswith(f"{run / 'last.ckpt'} is damaged or cut off")
    assert message.endswith("Bring the file back from a copy, or train anew into another folder with --out")


def test_a_checkpoint_of_another_model(run, tiny, quiet_train):
    (run / "summary.json").unlink()  # else there is nothing to go on with
    state = torch.load(run / "last.ckpt", weights_only=True)
    for change in (
        lambda: state["model"].pop("primary.conv.weight"),
        lambda: state.update(model={}),
        lambda: state.pop("progress"),
    ):
        change()
        torch.save(state, run / "last.ckpt")
        assert f"{run / 'last.ckpt'} belongs to another model" in message_of(resume, run)


class Trap:
    """What unpickling this would do."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def pickle_to(state, path):
    path.write_bytes(pickle.dumps(state, protocol=2))


@pytest.mark.parametrize(
    ("write", "unsafe_read"),
    [(pickle_to, lambda path: pickle.loads(path.read_bytes())), (torch.save, partial(torch.load, weights_only=False))],
    ids=["pickle", "torch.save"],
)
def test_code_in_a_checkpoint_is_not_run(run, tmp_path, write, unsafe_read):
    write({"model": Trap(tmp_path / "trapped")}, run / "last.ckpt")
    text = f"{run / 'last.ckpt'} is damaged or cut off, or holds more than a checkpoint's tensors and numbers"
    assert message_of(resume, run).startswith(text)
    assert not (tmp_path / "trapped").exists()
    unsafe_read(run / "last.ckpt")
    assert (tmp_path / "trapped").exists()  # the trap does work


def test_a_full_disk_keeps_the_older_checkpoint(tiny, quiet_train, tmp_path, monkeypatch, last_checkpoint):
    usual, calls = torch.save, iter(range(10))

    def save(state, file):
        if next(calls) == 3:
            file.write(b"some bytes")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        usual(state, file)

    monkeypatch.setattr(torch, "save", save)
    text = message_of(partial(quiet_train, checkpoint_seconds=0.0), tiny())
    path = tmp_path / "run" / "last.ckpt"
    assert text == f"no space left to write {path}; the previous version, if any, is untouched"
    assert last_checkpoint(path.parent)["progress"]["step"] == 2
    assert not list(path.parent.glob(".*part"))


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 256 KiB: room for a checkpoint of the fresh weights, not for one with Adam's moments beside it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder]
    may_mount = sys.platform == "linux" and shutil.which("mount") and os.geteuid() == 0
    if not may_mount or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a small disk needs the rights of root on Linux")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full(tiny, tmp_path, small_disk, last_checkpoint, quiet_train):
    text = message_of(quiet_train, tiny(), "disk/run")
    path = small_disk / "run" / "last.ckpt"
    assert text == f"no space left to write {path}; the previous version, if any, is untouched"
    assert last_checkpoint(path.parent)["progress"]["step"] == 0
    shutil.copytree(path.parent, tmp_path / "larger")
    assert resume(tmp_path / "larger", console=Console(quiet=True)).recipe == tiny()


def test_new_run_folders_are_numbered(tmp_path):
    names = []
    for _ in range(3):
        names.append(new_run_folder(tmp_path, "demo"))
        names[-1].mkdir()
    assert [path.name for path in names] == ["demo", "demo-2", "demo-3"]


def test_metrics_are_read_with_gaps(tmp_path):
    (tmp_path / "metrics.csv").write_text(HEADER + "1,0.001,0.5,,\n2,0.0009,0.25,0.3,4.5\n3,0.0008")
    metrics = RunFolder(tmp_path).read_metrics()
    np.testing.assert_array_equal(metrics["train_loss"], [0.5, 0.25, np.nan])
    np.testing.assert_array_equal(metrics["validation_error"], [np.nan, 4.5, np.nan])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"metrics\.csv: there is no such file; training writes it"),
        (HEADER, r"metrics\.csv: must hold at least one row of metrics, got none"),
        (HEADER + "1,fast,0.5,,\n", r"metrics\.csv: every cell must be a number or empty: .*'fast'"),
    ],
)
def test_bad_metrics_are_named(tmp_path, text, message):
    if text is not None:
        (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(CapsellaError, match=message):
        RunFolder(tmp_path).read_metrics()


def test_runs_are_called_by_what_tells_their_folders_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_names([Path("runs/demo")]) == run_names([tmp_path / "demo"]) == ["demo"]
    assert run_names([Path("a/x/run"), Path("b/x/run"), Path("cnn")]) == ["a/x/run", "b/x/run", "cnn"]
    assert run_names([Path("/run"), Path("/a/run")]) == ["/run", "a/run"]
    with pytest.raises(ValueError, match=r"runs: must name the folder of at least one run, got \[\]"):
        run_names([])
    with pytest.raises(ValueError, match="runs: must each be named once, got a, b/"):
        run_names([Path("a"), Path("b/../a")])


def test_a_training_that_begins_anew_has_not_diverged(tmp_path, tiny):
    files = RunFolder(tmp_path)
    files.write("diverged", {"reason": "the loss is nan"})
    files.write_config("tiny", tiny(), Machine())
    assert not files.has_diverged


def test_a_stem_is_found_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "there" / "runs" / "cnn").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    recipe = Recipe(model=ModelOptions("stem_linear", {"stem": "runs/cnn"}), data=DataOptions(name="digits"))
    assert _found(recipe, tmp_path / "there").model.options["stem"] == str(tmp_path / "there" / "runs" / "cnn")
    (tmp_path / "runs" / "cnn").mkdir(parents=True)
    assert _found(recipe, tmp_path / "there") == recipe
    named = recipe.with_model(stem="facebook/convnextv2-atto-1k-224")
    assert _found(named, tmp_path / "there") == named


def test_a_place_stays_as_it_was_written_unless_it_has_moved(tmp_path, monkeypatch):
    """A slash at its end was lost, and the run was then one of another recipe."""
    (tmp_path / "there" / "cells").mkdir(parents=True)
    data = DataOptions(name="laboratories", laboratories=("cells/", "pbc"))
    recipe = Recipe(model=ModelOptions("sabour2017_cnn"), data=data)
    monkeypatch.chdir(tmp_path / "there")
    assert _found(recipe, tmp_path / "there") == recipe
    monkeypatch.chdir(tmp_path)
    assert _found(recipe, tmp_path / "there").data.laboratories == (str(tmp_path / "there" / "cells"), "pbc")
