"""`capsella train` on a folder of one's own images, as its users call it."""

import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from capsella.data import folder
from capsella.training import load_run, train
from capsella.training.run import RunFolder
from tests.cli.conftest import CAPSNET
from tests.trained import SHORT

TIMES = ("images_per_second", "seconds")


def metrics(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return [{key: value for key, value in row.items() if key not in TIMES} for row in csv.DictReader(file)]


def read(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def test_a_run_leaves_everything_a_user_needs(trained, images):
    names = {path.name for path in trained.iterdir()}
    assert names >= {"config.json", "metrics.csv", "model.json", "model.safetensors", "last.ckpt", "summary.json"}
    assert names >= {"test.json", "result.json", "report.html", "figures", "events"}
    assert not [name for name in names if name.endswith(".part")]
    test, result = read(trained, "test"), read(trained, "result")
    assert test["images"] == 6
    assert [score["name"] for score in test["classes"]] == ["columns", "rings", "rows"]
    assert result["test"]["errors"] == test["errors"]
    assert result["command"].startswith("capsella train images-capsnet --data ")
    assert "--epochs 1" in result["command"]
    assert result["recipe"]["data"]["path"] == str(images)
    assert result["environment"]["torch"] == torch.__version__


def test_a_folder_alone_is_enough_and_runs_are_numbered(cli, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "images-efficient").mkdir(parents=True)
    decoded, open_file = [], folder.open_file
    monkeypatch.setattr(folder, "open_file", lambda path: decoded.append(path) or open_file(path))
    answer = cli("train", images, "--epochs", 1, "--accelerator", "cpu")
    assert answer.code == 0, answer.err
    assert sorted(decoded) == sorted(Path(images).rglob("*.png"))
    assert "--batch-size 16" in answer.out
    recipe = RunFolder(Path("runs/images-efficient-2")).read_config()[1]
    assert (recipe.data.size, recipe.data.channels, recipe.batch_size, recipe.epochs) == (32, 1, 16, 1)
    again = cli("train", images, "--epochs", 1, "--out", "runs/images-efficient-2")
    assert again.code == 1
    assert "already holds a run" in again.err


def test_seeds_are_averaged_and_more_can_be_added(cli, images, tmp_path):
    folder, words = tmp_path / "three [1]", ("train", *CAPSNET, "--data", images, *SHORT, "--seed", 4)
    answer = cli(*words, "--seeds", 2, "--out", folder)
    assert answer.code == 0
    values = read(folder, "seeds")
    tests = {seed: read(folder / f"seed{seed}", "test") for seed in ("4", "5")}
    errors = {seed: 100 * test["errors"] / test["images"] for seed, test in tests.items()}
    assert values["test_error_percent"] == pytest.approx(errors)
    assert values["sd"] == pytest.approx(statistics.stdev(errors.values()))
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("seed*/summary.json")}
    assert cli(*words, "--seeds", 3, "--out", folder).code == 0
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert list(read(folder, "seeds")["test_error_percent"]) == ["4", "5", "6"]
    other = cli(*words, "--epochs", 2, "--seeds", 2, "--out", folder)
    assert (other.code, "epochs" in other.err) == (1, True)


class TestFolds:
    @pytest.fixture(scope="class")
    def folded(self, images, tmp_path_factory):
        """The folder that `capsella train … --folds 3` leaves."""
        folder = tmp_path_factory.mktemp("folds") / "f"
        from capsella.cli import main

        main([*map(str, ("train", *CAPSNET, "--data", images, *SHORT, "--folds", "3", "--out", folder))])
        return folder

    def test_every_image_is_tested_once(self, cli, folded):
        with open(folded / "predictions.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len({row["file"] for row in rows}) == len(rows) == 33
        values = read(folded, "folds")
        wrong = [row for row in rows if row["class"] != row["predicted"]]
        assert values["pooled"]["errors"] == len(wrong)
        for fold, found in enumerate(values["folds"]):
            assert found["errors"] == sum(row["fold"] == str(fold) for row in wrong)
            data = load_run(folded / f"fold{fold}").recipe.data
            assert (data.folds, data.fold) == (3, fold)
        assert "--folds 3 --fold 2" in read(folded / "fold2", "result")["command"]
        assert cli("evaluate", folded / "fold2").code == 0
        assert read(folded / "fold2", "test")["errors"] == values["folds"][2]["errors"]


def spawn(*words):
    """`capsella …` in a process of its own, with as many threads as this one."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-m", "capsella", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_after_an_epoch(process, checkpoint):
    """Wait until the checkpoint has been replaced once, and kill."""
    seen: set[int] = set()
    while len(seen) < 2:
        assert process.poll() is None, process.communicate()
        if checkpoint.exists():
            seen.add(checkpoint.stat().st_mtime_ns)
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_killed_and_resumed_the_weights_are_those_of_an_unbroken_run(cli, images, tmp_path):
    killed, unbroken = tmp_path / "killed", tmp_path / "unbroken"
    words = ["--data", images, "--size", 17, "--epochs", 3, "--batch-size", 2, "--accelerator", "cpu"]
    words += ["--deterministic", "--out", killed]
    kill_after_an_epoch(spawn("train", *CAPSNET, *words), killed / "last.ckpt")
    progress = torch.load(killed / "last.ckpt", weights_only=True)["progress"]
    assert 0 < progress["epoch"] < 3
    assert not (killed / "summary.json").exists()
    interrupted = cli("evaluate", killed)
    assert interrupted.code == 1 or "interrupted" in interrupted.err

    assert cli("train", "--resume", killed, "--epochs", 9).code == 1
    assert cli("train", "--resume", killed, "--threads", 1).code == 0
    assert (killed / "report.html").exists()
    _, recipe, _ = RunFolder(killed).read_config()
    train(recipe, unbroken, console=Console(quiet=True))
    assert (killed / "model.safetensors").read_bytes() == (unbroken / "model.safetensors").read_bytes()
    states = [torch.load(folder / "last.ckpt", weights_only=True) for folder in (killed, unbroken)]
    for number, moments in states[1]["optimizer"]["state"].items():
        for name, tensor in moments.items():
            assert torch.equal(states[0]["optimizer"]["state"][number][name], tensor), name
    assert metrics(killed) == metrics(unbroken)


def test_a_truncated_image_is_named_and_leaves_nothing_or_is_left_out(cli, copied, tmp_path):
    images, _ = copied
    broken, run = images / "rows" / "rows00.png", tmp_path / "new run"
    broken.write_bytes(broken.read_bytes()[:40])
    words = ("train", "images-resnet", "--data", images, *SHORT, "--out", run)
    answer = cli(*words)
    assert (answer.code, str(broken) in answer.err, run.exists()) == (1, True, False)
    assert cli(*words, "--skip-broken").code == 0
    (left_out,) = read(run, "summary")["broken_images"]
    assert left_out.startswith(str(broken))
