"""`capsella predict`."""

import csv
import io
import shutil
import subprocess
import sys
import time

import pytest


def table(text):
    return list(csv.reader(io.StringIO(text)))


def test_to_standard_output_and_to_a_file(cli, trained, images, broken, tmp_path):
    answer = cli("predict", trained, images / "rows", images / "rings" / "rings03.png", broken)
    head, *rows = table(answer.out)
    assert answer.code == 0
    assert head[:6] == ["file", "class", "columns", "rings", "rows", "probability"]
    assert head[6:] == ["in_distribution", "ood_reason", "error", "model"]
    assert rows[0][0] == str(images / "rows" / "rows00.png")
    assert len(rows) == 13
    for row in rows[:-1]:
        activations = dict(zip(head[2:5], map(float, row[2:5]), strict=True))
        assert row[1] == max(activations, key=activations.get)
        assert all(0 <= value <= 1 for value in activations.values())
    assert rows[-1][0] == str(broken)
    assert rows[-1][-2]
    out = tmp_path / "sub" / "p.csv"
    words = ["predict", trained, images / "rows", images / "rings" / "rings03.png", broken, "--out", out]
    written = cli(*words, "--batch-size", 7)
    assert (written.code, written.out, out.read_text()) == (0, "", answer.out)
    assert cli(*words).code == 1  # it exists
    assert cli(*words, "--resume").code == 0
    assert out.read_text() == answer.out
    out.write_text("older")
    assert cli(*words, "--overwrite").code == 0
    assert out.read_text() == answer.out


def test_images_out_of_distribution(cli, trained, images, tmp_path):
    """With three validation images, nearly all may be flagged."""
    words = "predict", trained, images, "--ood-false-positive-rate", 0.85
    answer = cli(*words, "--out", tmp_path / "t.csv")
    assert answer.code == 0, answer.err
    rows = list(csv.DictReader((tmp_path / "t.csv").open()))
    reasons = [row["ood_reason"] for row in rows if row["in_distribution"] == "false"]
    assert 0 < len(reasons) < len(rows) == 33
    assert all(reasons)
    assert f"{len(reasons)} of 33 out of distribution" in answer.err


def test_prediction_sets_and_unsure_predictions(cli, trained, images):
    options = "--coverage", 0.7, "--unsure-below", 0.99, "--ood-false-positive-rate", 0
    answer = cli("predict", trained, images / "rows", *options)
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert (answer.code, len(rows)) == (0, 11)
    for row in rows:
        assert 1 / 3 <= float(row["probability"]) <= 1
        assert row["unsure"] == str(float(row["probability"]) < 0.99).lower()
        assert row["class"] in row["prediction_set"].split(" | ")


def start(said, *words):
    """To a file, not to a pipe: workers that outlive their parent would keep a pipe open, and the test waiting."""
    command = [sys.executable, "-m", "capsella", "predict", *map(str, words)]
    with open(said, "wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


@pytest.mark.slow
def test_killed_with_its_workers_at_work_and_resumed(trained, images, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    files = sorted(images.rglob("*.png"))
    for k in range(400):
        shutil.copy(files[k % len(files)], folder / f"{k}.png")
    out, said = tmp_path / "p.csv", tmp_path / "said.txt"
    words = [trained, folder, "--out", out, "--batch-size", 2, "--resume"]
    job = start(said, *words, "--workers", 2)
    while not out.exists() or out.read_bytes().count(b"\n") < 20:
        assert job.poll() is None, said.read_text()
        time.sleep(0.002)
    job.kill()
    job.wait()
    job = start(said, *words, "--workers", 0)
    assert job.wait() == 0, said.read_text()
    assert sorted(row[0] for row in table(out.read_text())[1:]) == sorted(map(str, folder.iterdir()))


def test_the_images_to_label_first(cli, trained, images, tmp_path):
    words = ["predict", trained, images, "--label-next", 4, "--out", tmp_path / "next.csv"]
    assert cli(*words).code == 0
    head, *rows = table((tmp_path / "next.csv").read_text())
    assert (head, len(rows)) == (["file", "class", "probability"], 4)
    assert cli(*words).code == 1  # it exists
    assert cli(*words[:-2]).code == 2  # without a file
    assert cli(*words, "--overwrite", "--coverage", 0.9).code == 2


def test_an_exported_folder_predicts_as_the_run(cli, trained, images, tmp_path):
    for name in ("model.json", "model.safetensors", "calibration.json"):
        (tmp_path / "exported").mkdir(exist_ok=True)
        shutil.copy(trained / name, tmp_path / "exported" / name)
    ours, theirs = (table(cli("predict", folder, images / "rows").out) for folder in (tmp_path / "exported", trained))
    assert [row[:5] for row in ours] == [row[:5] for row in theirs]
    assert cli("evaluate", tmp_path / "exported").code == 1


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--resume"], "resume"),
        (["--out", "p.txt"], "out"),
        (["--out", "p", "--on", "ray", "--workers", "1"], "workers"),
        (["--coverage", "95"], "coverage"),
    ],
)
def test_flags_that_cannot_be(cli, trained, images, flags, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = cli("predict", trained, images, *flags)
    assert answer.code in (1, 2)
    assert named in answer.err
    assert list(tmp_path.iterdir()) == []
