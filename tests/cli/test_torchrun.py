"""`torchrun … -m capsella train` with no other flag: its processes train one network together."""

import csv
import os
import subprocess
import sys
import time

import psutil
import pytest
import safetensors.torch
from rich.console import Console

from capsella.training import ComputeOptions, resume, train
from capsella.training.run import RunFolder
from tests.cli.conftest import CAPSNET

pytestmark = pytest.mark.slow
WORDS = ["--size", 17, "--epochs", 3, "--batch-size", 4, "--shift", 0, "--no-flip"]
WORDS += ["--precision", "32-true", "--accelerator", "cpu"]


def torchrun(*words, processes=2):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*launcher, "-m", "capsella", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def rows(run):
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def assert_close(one, other, tmp_path):
    """Equal up to rounding, which Adam's first steps may turn into a whole step for a few numbers."""
    for mine, theirs in zip(rows(tmp_path / one), rows(tmp_path / other), strict=True):
        for key in ("train_images", "step"):
            assert mine[key] == theirs[key], key
        assert float(mine["validation_loss"]) == pytest.approx(float(theirs["validation_loss"]), rel=0.02)
    weights = [safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in (one, other)]
    for name, tensor in weights[0].items():
        assert (weights[1][name] - tensor).abs().mean() < 1e-3, name


def test_its_processes_train_one_network_and_another_number_goes_on(cli, images, tmp_path):
    """Without augmentation a batch's gradient is the mean over its parts: runs agree to rounding."""
    words = ["train", *CAPSNET, "--data", images, *WORDS, "--out"]
    process = torchrun(*words, tmp_path / "two")
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    assert out.count("test error") == 1
    assert out.count("epoch 1/3") == 1
    assert cli(*words, tmp_path / "one").code == 0
    assert_close("two", "one", tmp_path)

    paused = tmp_path / "paused"
    _, recipe, _ = RunFolder(tmp_path / "one").read_config()
    train(recipe, paused, compute=ComputeOptions(accelerator="cpu"), console=Console(quiet=True), until=1)
    process = torchrun("train", "--resume", paused)
    _, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    assert_close("paused", "one", tmp_path)


def test_a_process_that_is_killed_ends_all_and_resume_goes_on(images, tmp_path):
    words = ["train", *CAPSNET, "--data", images, *WORDS, "--epochs", 40, "--out", tmp_path / "run"]
    process = torchrun(*words)
    while not (tmp_path / "run" / "metrics.csv").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    ranks = {one.environ().get("RANK"): one for one in psutil.Process(process.pid).children()}
    ranks["1"].kill()
    _, err = process.communicate(timeout=200)
    assert process.returncode != 0
    assert f"capsella train --resume {tmp_path / 'run'}" in " ".join(err.split()), err
    assert "RuntimeError" not in err
    done = len(rows(tmp_path / "run"))
    assert 0 < done < 40
    again = resume(tmp_path / "run", console=Console(quiet=True), until=done + 1)
    assert len(rows(again.folder)) == done + 1
