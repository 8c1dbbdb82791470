"""A run on pairs of images, from training to its pictures."""

import csv
import json
import re

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import NARROW

PAIRS = ["--of", "digits", "--epoch-images", "16", "--validation-pairs", "10", "--test-pairs", "20"]
SHORT = [*NARROW, *PAIRS, "--size", "9"]


@pytest.fixture
def run_on_pairs(cli, tmp_path):
    """17×17: the least that CapsNet's kernels allow is 9×9 and shifts of 4."""
    folder = tmp_path / "pairs"
    answer = cli("train", "sabour2017-multimnist", *SHORT, "--epochs", "1", "--batch-size", "8", "--out", folder)
    assert answer.code == 0, answer.err
    return folder


def test_a_run_on_pairs(cli, run_on_pairs, tmp_path) -> None:
    assert "both classes found" in (run_on_pairs / "report.html").read_text()
    written = json.loads((run_on_pairs / "result.json").read_text())
    assert "--data.of digits" in written["command"]
    assert written["test"]["images"] == 20
    answer = cli("evaluate", run_on_pairs, "--json")
    assert json.loads(answer.out)["errors"] == written["test"]["errors"]

    answer = cli("evaluate", run_on_pairs, "--test-pairs", 7)
    assert answer.code == 0, answer.err
    assert json.loads((run_on_pairs / "test-pairs7.json").read_text())["images"] == 7
    assert "test_pairs: must be at least 1, got 0" in cli("evaluate", run_on_pairs, "--test-pairs", 0).err
    assert "test_per_class: not for a run on pairs" in cli("evaluate", run_on_pairs, "--test-per-class", 1).err

    answer = cli("explain", run_on_pairs)
    assert answer.out.strip() == str(run_on_pairs / "explain" / "pairs.png")
    with Image.open(run_on_pairs / "explain" / "pairs.png") as picture:
        assert min(picture.size) > 300

    image = tmp_path / "one.png"
    Image.fromarray(np.full((17, 17), 90, np.uint8)).save(image)
    answer = cli("predict", run_on_pairs, image)
    row = next(csv.DictReader(answer.out.splitlines()))
    strongest = sorted("0123456789", key=lambda name: -float(row[name]))[:2]
    assert row["class"] == " + ".join(strongest)
    for more in ([], ["--overwrite"]):
        answer = cli("predict", run_on_pairs, image, "--out", tmp_path / "table.csv", *more)
        assert answer.code == 0, answer.err
        assert next(csv.DictReader((tmp_path / "table.csv").open())) == row


def test_show_measures_the_overlap(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = cli("data", "show", "pairs", "--of", "digits", "--size", "28", "--test-pairs", "70")
    assert answer.code == 0, answer.err
    assert "pairs of digits: 36×36×1" in answer.out
    shares = re.search(
        r"test: 70 pairs; mean overlap ([\d.]+) % of an image's area, ([\d.]+) % of the smaller", answer.out
    )
    assert abs(float(shares[1]) - 79.9) < 3  # 70 pairs; shifts up to 4 pixels on 28×28 give 79.9
    assert abs(float(shares[2]) - 75) < 8  # scikit-learn's digits fill nearly the whole height
    assert "drawn alone at" in answer.out
    assert int(re.search(r"drawn alone at ([\d,]+) a second", answer.out)[1].replace(",", "")) > 1000
    assert (tmp_path / "pairs-sheet.png").exists()
