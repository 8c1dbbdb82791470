"""Run folders that are half written, damaged, malicious, in use, or on a disk that is full."""

import os
import pickle
import zipfile
from functools import partial

import numpy as np
import pytest
import torch
from rich.console import Console

from capsella.errors import BusyError, CapsellaError
from capsella.files import alone_in
from capsella.training import load_run, resume
from capsella.training.run import RunFolder

HEADER = "epoch,learning_rate,train_loss,validation_loss,validation_error\n"
QUIET = Console(quiet=True)


def message_of(function, *arguments, **options):
    with pytest.raises(CapsellaError) as error:
        function(*arguments, **options)
    return str(error.value)


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_a_folder_that_holds_a_run_is_kept(run, tiny, quiet_train):
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert str(run) in message_of(quiet_train, tiny(epochs=1, seed=5))
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_parts_that_are_missing_are_named(run):
    cut(run / "model.safetensors")
    assert str(run / "model.safetensors") in message_of(load_run, run)
    (run / "model.safetensors").unlink()
    assert str(run / "model.safetensors") in message_of(load_run, run)
    (run / "model.json").unlink()
    assert f"--resume {run}" in message_of(load_run, run)  # no epoch is complete
    for name in ("last.ckpt", "summary.json"):
        (run / name).unlink()
    assert str(run / "model.json") in message_of(load_run, run)
    assert str(run / "last.ckpt") in message_of(resume, run)


def test_a_damaged_config(run):
    config = run / "config.json"
    whole = config.read_text()
    damaged = ["", "[]", "{}", '{"name": "x", "recipe": {}, "environment": 1}', "\xff"]
    for text in [*damaged, whole[: len(whole) // 2], whole.replace('"epochs"', '"rounds"')]:
        config.write_text(text, encoding="latin-1")
        for function in (load_run, resume):
            assert message_of(function, run).startswith(str(config))


def test_a_damaged_checkpoint_is_noticed_before_any_image_is_read(run, monkeypatch):
    """PyTorch compares no checksums: it reads a file with a changed bit."""
    (run / "summary.json").unlink()
    monkeypatch.setattr("capsella.training.run.load_data", None)
    checkpoint = run / "last.ckpt"
    whole = checkpoint.read_bytes()
    with zipfile.ZipFile(checkpoint) as archive:
        at = max(archive.infolist(), key=lambda part: part.file_size).header_offset + 1000
    changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    for content in (changed, whole[: len(whole) // 2], b"", b"text"):
        checkpoint.write_bytes(content)
        assert f"{checkpoint} is damaged" in message_of(resume, run)
    checkpoint.write_bytes(changed)
    assert torch.load(checkpoint, weights_only=True)


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
    (run / "summary.json").unlink()
    write({"model": Trap(tmp_path / "trapped")}, run / "last.ckpt")
    assert str(run / "last.ckpt") in message_of(resume, run)
    assert not (tmp_path / "trapped").exists()
    unsafe_read(run / "last.ckpt")
    assert (tmp_path / "trapped").exists()  # the trap does work


def test_metrics_are_read_with_gaps_and_bad_ones_are_named(tmp_path):
    file = tmp_path / "metrics.csv"
    assert str(file) in message_of(RunFolder(tmp_path).read_metrics)
    for text in (HEADER, HEADER + "1,fast,0.5,,\n"):
        file.write_text(text)
        assert str(file) in message_of(RunFolder(tmp_path).read_metrics)
    file.write_text(HEADER + "1,0.001,0.5,,\n2,0.0009,0.25,0.3,4.5\n3,0.0008")
    metrics = RunFolder(tmp_path).read_metrics()
    np.testing.assert_array_equal(metrics["train_loss"], [0.5, 0.25, np.nan])
    np.testing.assert_array_equal(metrics["validation_error"], [np.nan, 4.5, np.nan])


@pytest.mark.parametrize("variable", ["UNRELATED", "SLURM_PROCID"])
def test_a_folder_in_use_is_left_alone(tiny, run, quiet_train, tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")  # trainings of one process each
    with alone_in(run), pytest.raises(BusyError):
        resume(run, console=QUIET)
    with alone_in(tmp_path / "new"), pytest.raises(BusyError):
        quiet_train(tiny(), "new")
    assert not (tmp_path / "new").exists()
    assert not (run / ".lock").exists()
