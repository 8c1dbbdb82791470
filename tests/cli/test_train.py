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
import safetensors.torch
import torch
from PIL import Image
from rich.console import Console

from capsella.training import train
from capsella.training.run import RunFolder
from tests.cli.conftest import CAPSNET
from tests.trained import SHORT

TIMES = ("images_per_second", "seconds")


def metrics(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return [{key: value for key, value in row.items() if key not in TIMES} for row in csv.DictReader(file)]


def test_a_run_leaves_everything_a_user_needs(trained):
    names = {path.name for path in trained.iterdir()}
    assert names >= {"config.json", "metrics.csv", "model.json", "model.safetensors", "last.ckpt", "summary.json"}
    assert names >= {"test.json", "result.json", "report.html", "figures", "events"}
    assert not [name for name in names if name.endswith(".part")]
    test = json.loads((trained / "test.json").read_text())
    assert test["images"] == 6
    assert [score["name"] for score in test["classes"]] == ["columns", "rings", "rows"]
    assert json.loads((trained / "result.json").read_text())["test"]["errors"] == test["errors"]


def test_the_command_in_the_result_trains_the_same(trained, images):
    result = json.loads((trained / "result.json").read_text())
    assert result["command"].startswith("capsella train images-capsnet --model.primary-types 4 ")
    assert " --data.path " in result["command"]
    assert "--epochs 1" in result["command"]
    assert result["recipe"]["data"]["path"] == str(images)
    assert result["environment"]["torch"] == torch.__version__


def test_the_default_folder_is_numbered_and_an_existing_one_refused(cli, images, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "images-capsnet").mkdir(parents=True)
    answer = cli("train", *CAPSNET, "--path", images, *SHORT)
    assert answer.code == 0
    assert "run     runs/images-capsnet-2\n" in answer.out
    assert f"report  {Path('runs/images-capsnet-2/report.html')}" in answer.out
    assert (tmp_path / "runs" / "images-capsnet-2" / "report.html").exists()

    before = (trained / "config.json").read_bytes()
    answer = cli("train", *CAPSNET, "--path", images, *SHORT, "--out", trained)
    assert answer.code == 1
    assert str(trained) in answer.err
    assert (trained / "config.json").read_bytes() == before


def test_seeds_are_averaged(cli, images, tmp_path):
    folder = tmp_path / "three [1]"
    answer = cli("train", *CAPSNET, "--path", images, *SHORT, "--seeds", 2, "--seed", 4, "--out", folder)
    assert answer.code == 0
    values = json.loads((folder / "seeds.json").read_text())
    tests = {seed: json.loads((folder / f"seed{seed}" / "test.json").read_text()) for seed in ("4", "5")}
    errors = {seed: 100 * test["errors"] / test["images"] for seed, test in tests.items()}
    assert values["test_error_percent"] == pytest.approx(errors)
    assert values["mean"] == pytest.approx(sum(errors.values()) / 2)
    assert values["sd"] == pytest.approx(abs(errors["4"] - errors["5"]) / 2**0.5)
    assert values["sd"] == pytest.approx(statistics.stdev(errors.values()))
    assert f"{values['mean']:.2f} ± {values['sd']:.2f} %" in answer.out
    assert str(folder) in answer.out
    configs = [json.loads((folder / f"seed{seed}" / "config.json").read_text()) for seed in (4, 5)]
    assert [config["recipe"]["seed"] for config in configs] == [4, 5]

    more = cli("train", *CAPSNET, "--path", images, *SHORT, "--seeds", 3, "--seed", 4, "--out", folder)
    assert more.code == 0
    assert "run 3 of 3: seed 6" in more.out
    assert "run 2 of 3" not in more.out
    assert (folder / "seed4" / "config.json").read_text() == json.dumps(configs[0], indent=2) + "\n"
    found = json.loads((folder / "seeds.json").read_text())["test_error_percent"]
    assert {seed: found[seed] for seed in tests} == errors
    assert list(found) == ["4", "5", "6"]
    other = cli("train", *CAPSNET, "--path", images, *SHORT, "--epochs", 2, "--seeds", 2, "--seed", 4, "--out", folder)
    assert other.code == 1
    assert "epochs" in other.err


def spawn(*words):
    """`capsella …` in a process of its own, with as many threads as this one."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-m", "capsella", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_in_mid_epoch(process, checkpoint):
    """Wait until the checkpoint has been replaced some times, and kill."""
    seen: set[int] = set()
    deadline = time.monotonic() + 300
    while len(seen) < 4:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        if checkpoint.exists():
            seen.add(checkpoint.stat().st_mtime_ns)
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_killed_in_mid_epoch_and_resumed_the_weights_are_those_of_an_unbroken_run(cli, images, tmp_path):
    killed, unbroken = tmp_path / "killed", tmp_path / "unbroken"
    words = ["--path", images, "--size", 17, "--epochs", 2, "--batch-size", 2, "--accelerator", "cpu"]
    words += ["--deterministic", "--checkpoint-seconds", 0, "--out", killed]
    kill_in_mid_epoch(spawn("train", *CAPSNET, *words), killed / "last.ckpt")
    progress = torch.load(killed / "last.ckpt", weights_only=True)["progress"]
    assert 0 < progress["batch"] < 12  # of 24 images
    assert not (killed / "summary.json").exists()

    answer = cli("train", "--resume", killed)
    assert answer.code == 0
    assert (killed / "report.html").exists()
    _, recipe, _ = RunFolder(killed).read_config()
    assert recipe.deterministic
    train(recipe, unbroken, console=Console(quiet=True))
    assert (killed / "model.safetensors").read_bytes() == (unbroken / "model.safetensors").read_bytes()
    states = [torch.load(folder / "last.ckpt", weights_only=True) for folder in (killed, unbroken)]
    for name, tensor in states[1]["model"].items():
        assert torch.equal(states[0]["model"][name], tensor), name
    for number, moments in states[1]["optimizer"]["state"].items():
        for name, tensor in moments.items():
            assert torch.equal(states[0]["optimizer"]["state"][number][name], tensor), name
    assert metrics(killed) == metrics(unbroken)


@pytest.mark.slow
def test_two_processes_compute_what_one_does(cli, images, tmp_path):
    """Without augmentation the gradient of a batch is the mean over its two halves, so the runs agree to rounding."""
    # The other processes would ask the machine what "auto" is, and this one the tests.
    words = ["--path", images, *SHORT, "--shift", 0, "--precision", "32-true"]
    process = spawn("train", *CAPSNET, *words, "--devices", 2, "--out", tmp_path / "two")
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    assert out.count("test error") == 1
    assert out.count("epoch 1/1") == 1
    assert cli("train", *CAPSNET, *words, "--out", tmp_path / "one").code == 0
    one, two = (metrics(tmp_path / name)[0] for name in ("one", "two"))
    for key in ("train_images", "step", "train_error", "validation_error"):
        assert one[key] == two[key], key
    for key in ("train_loss", "train_classification", "train_reconstruction", "validation_loss"):
        assert float(two[key]) == pytest.approx(float(one[key]), rel=1e-4), key
    weights = [safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    for name, tensor in weights[0].items():
        # Adam's first steps have the size of the learning rate whatever the gradient's: rounding may turn a few.
        assert (weights[1][name] - tensor).abs().mean() < 1e-5, name


class TestBadImages:
    """Folders that cannot be trained on: what the user reads, and that nothing is left behind."""

    @pytest.fixture
    def refused(self, cli, tmp_path):
        def text_of(folder, *words):
            answer = cli("train", *CAPSNET, "--path", folder, *SHORT, *words, "--out", tmp_path / "run")
            assert answer.code == 1
            assert not (tmp_path / "run").exists()
            return answer.err

        return text_of

    @pytest.fixture
    def folder(self, tmp_path):
        for kind in ("a", "b"):
            (tmp_path / "own" / kind).mkdir(parents=True)
            for number in range(6):
                Image.new("L", (17, 17), 40 * number + ord(kind) - 97).save(
                    tmp_path / "own" / kind / f"{kind}{number}.png"
                )
        return tmp_path / "own"

    def test_a_truncated_image_is_named_or_left_out(self, refused, folder, cli, tmp_path):
        broken = folder / "a" / "a0.png"
        broken.write_bytes(broken.read_bytes()[:40])
        said = refused(folder)
        assert f"{broken}: cannot be read as an image" in said
        assert "--skip-broken leaves such files out" in said
        answer = cli("train", *CAPSNET, "--path", folder, *SHORT, "--skip-broken", "--out", tmp_path / "run")
        assert answer.code == 0
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert len(summary["broken_images"]) == 1
        assert summary["broken_images"][0].startswith(str(broken))
        assert "left out 1 broken image:" in answer.out
        assert str(broken) in answer.out
        assert "1 image that cannot be read: " in (tmp_path / "run" / "report.html").read_text()

    def test_a_class_without_images(self, refused, folder):
        (folder / "c").mkdir()
        assert f"{folder / 'c'}: a class must have images" in refused(folder)

    def test_one_class_only(self, refused, folder):
        assert "must have one sub-folder a class, 2 or more" in refused(folder / "a")

    def test_mixed_channels(self, refused, folder):
        Image.new("RGB", (17, 17)).save(folder / "a" / "colour.png")
        assert "images must not have different numbers of channels" in refused(folder)

    def test_too_small(self, refused, folder):
        assert "image_size: must be at least 17×17 for these kernels, got 16×16" in refused(folder, "--size", 16)

    def test_a_class_too_small_to_split(self, refused, folder):
        for number in range(1, 6):
            (folder / "b" / f"b{number}.png").unlink()
        assert "the class 'b' has 1 image to part" in refused(folder)


def test_a_folder_alone_is_enough_and_says_what_was_chosen(cli, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = cli("train", images, "--epochs", 1, "--accelerator", "cpu")
    assert answer.code == 0
    assert "33 images in 3 classes, mostly 17×17 pixels, grey" in answer.out
    assert "recipe images-efficient; chosen for these images:" in answer.out
    assert "--size 32" in answer.out
    assert "--batch-size 16" in answer.out
    assert "--epochs" not in answer.out  # it was given
    assert "training images are mirrored, shifted by up to 2 pixels" in answer.out
    assert "note: 100 epochs are usual for these images; after 1 " in answer.out
    recipe = RunFolder(Path("runs/images-efficient")).read_config()[1]
    assert (recipe.data.size, recipe.data.channels, recipe.batch_size, recipe.epochs) == (32, 1, 16, 1)
