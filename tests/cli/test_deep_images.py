"""Images of a camera of 12 bits, from training to prediction, as a user calls the commands."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsella.data import load_data
from capsella.evaluation import evaluate
from capsella.export.graph import describe_model
from capsella.models import ImageClassifier
from capsella.training import load_run


@pytest.fixture(scope="module")
def camera(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of ten images with values of 12 bits in files of 16."""
    folder, random = tmp_path_factory.mktemp("camera"), np.random.default_rng(0)
    for label, name in enumerate(("dim", "lit")):
        (folder / name).mkdir()
        for number in range(10):
            values = random.normal(300, 20, (20, 20))
            values[5:15, 5:15] += 500 + 2500 * label
            Image.fromarray(values.clip(0, 4095).astype(np.uint16)).save(folder / name / f"{number}.tif")
    (folder / "lit/notes.txt").write_text("not an image")
    return folder


def test_training_and_prediction_read_the_same_pixels(cli, camera: Path, tmp_path: Path):
    run = tmp_path / "run"
    words = ("--data.path", camera, "--size", 20, "--epochs", 1, "--model", "hinton2018_cnn")
    said = cli("train", "images-cnn", *words, "--out", run).out
    assert "20 files of 16 bits a channel: values" in said
    assert "passed over 1 .txt file (notes.txt)" in said
    model, recipe = load_run(run).model, load_run(run).recipe
    low, high = model.value_range
    assert 200 < low < 300
    assert 3000 < high < 4096
    assert recipe.data.range == (low, high)
    assert json.loads((run / "model.json").read_text())["value_range"] == [low, high]
    model.save_pretrained(tmp_path / "again")
    assert ImageClassifier.from_pretrained(tmp_path / "again").value_range == (low, high)
    steps = describe_model(model)["preprocessing"]
    (deep,) = [at for at, step in enumerate(steps) if f"bring {low:.10g} to 0 and {high:.10g} to 255" in step]
    assert deep < next(at for at, step in enumerate(steps) if "resize" in step)  # else hot pixels would smear
    assert describe_model(model)["input"]["value_range"] == [low, high]

    test = load_data(recipe.data).test
    expected = evaluate(model, test).activations
    cli("predict", run, *(camera / file for file in test.files), "--out", tmp_path / "p.csv")
    rows = list(csv.reader((tmp_path / "p.csv").open()))[1:]
    assert np.allclose([[float(cell) for cell in row[2:4]] for row in rows], expected, atol=2e-6)
    other = cli("predict", run, camera / test.files[0], "--range", 0, 65535).out
    assert other.splitlines()[1].split(",")[2:4] != rows[0][2:4]


def test_another_camera_has_a_range_of_its_own(cli, camera: Path, tmp_path: Path):
    """The same scenes, five times as bright: all white by the range of the network's own camera."""
    run, other = tmp_path / "run", tmp_path / "other"
    for file in camera.glob("*/*.tif"):
        values = np.asarray(Image.open(file)).astype(np.uint32) * 5 + 4000
        (other / file.parent.name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(values.astype(np.uint16)).save(other / file.parent.name / file.name)
    cli("train", "images-efficient", "--data.path", camera, "--size", 28, "--epochs", 1, "--out", run)
    tested = cli("evaluate", run, "--data", other)
    assert tested.code == 0, tested.err
    assert "of 20 images" in tested.out
    assert "capsella predict reads these files alike with --range 5" in tested.out
    at_home = cli("evaluate", run, "--data", camera)
    errors = [json.loads((run / f"{name}-all.json").read_text())["errors"] for name in ("other", "camera0")]
    assert errors[0] == errors[1], at_home.out
    assert cli("adapt", run, other, "--per-class", 2, "--steps", 2, "--out", tmp_path / "adapted").code == 0
    low, high = load_run(tmp_path / "adapted").model.value_range
    assert low > 5000
    assert high > 19_000
    own = json.loads((run / "other-all.json").read_text())["laboratory"]["range"]
    assert own == pytest.approx((low, high))
    given = cli("evaluate", run, "--data", other, "--range", 4000, 24475)
    assert "alike with --range 4000 24475" in given.out
    assert json.loads((run / "other-all-range4000-24475.json").read_text())["laboratory"]["range"] == [4000, 24475]
    assert "only for the images of --data" in cli("evaluate", run, "--range", 0, 4095).err
    adapted = tmp_path / "adapted"
    assert "and reads it as it did then" in cli("evaluate", adapted, "--data", other, "--range", 0, 9).err
    assert cli("evaluate", adapted, "--data", camera, "--range", 0, 4095).code == 0  # another laboratory yet
    words = ("--per-class", 2, "--steps", 2, "--range", 4000, 24475, "--out", tmp_path / "given")
    assert cli("adapt", run, other, *words).code == 0
    assert load_run(tmp_path / "given").model.value_range == (4000, 24475)


def test_a_model_of_8_bits_does_not_guess(cli, trained: Path, camera: Path):
    refused = cli("predict", trained, camera / "lit/1.tif")
    assert refused.code == 1
    assert "16 bits" in refused.out
    assert cli("predict", trained, camera / "lit/1.tif", "--range", 0, 4095).code == 0
    assert "range: must be two finite numbers" in cli("predict", trained, camera, "--range", 5, 5).err


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_prediction_that_is_broken_off_leaves_nothing_behind(trained: Path, tmp_path: Path, sent: signal.Signals):
    Image.fromarray(np.zeros((9, 9), dtype=np.uint8)).save(tmp_path / "0.png")
    for number in range(1, 3000):
        os.link(tmp_path / "0.png", tmp_path / f"{number}.png")
    words = ["predict", trained, tmp_path, "--out", tmp_path / "t.csv", "--workers", 1, "--batch-size", 1]
    # A job in the background, as these tests may be one, does not hear SIGINT.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}; from capsella.cli.main import main; main({list(map(str, words))!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    out, end = tmp_path / "t.csv", time.monotonic() + 100
    while time.monotonic() < end and not (out.exists() and out.read_bytes().count(b"\n") > 2):
        time.sleep(0.05)
    process.send_signal(sent)
    error = process.communicate(timeout=100)[1]
    assert process.returncode == 128 + sent, error
    assert "leaked" not in error
    assert "Traceback" not in error
