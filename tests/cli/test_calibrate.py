"""Probabilities that one can trust, from the command line: `calibrate`, `predict`, `evaluate --reject`."""

import csv
import io
import json
import shutil

import pytest


@pytest.fixture
def old(trained, tmp_path):
    """A run from before calibration."""
    folder = tmp_path / "old"
    shutil.copytree(trained, folder)
    (folder / "calibration.json").unlink()
    return folder


def test_training_ends_calibrated_and_an_old_run_can_be(cli, trained, old):
    answer = cli("calibrate", old)
    assert answer.code == 0
    assert "on 3 validation images" in answer.out
    assert "these are too few to call any image not known: that needs 45" in answer.out
    assert f"written to {old / 'calibration.json'} and {old / 'novelty.safetensors'}" in answer.out
    ours, theirs = (json.loads((folder / "calibration.json").read_text()) for folder in (old, trained))
    assert ours["temperature"] == pytest.approx(theirs["temperature"], rel=1e-3)
    assert ours["weights"] == theirs["weights"]


def test_predict_with_a_set_and_doubts(cli, trained, images):
    answer = cli("predict", trained, images / "rows", "--coverage", 0.7, "--unsure-below", 0.99, "--refuse", 0)
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert (answer.code, len(rows)) == (0, 11)
    for row in rows:
        assert 1 / 3 <= float(row["probability"]) <= 1
        assert row["unsure"] == str(float(row["probability"]) < 0.99).lower()
        assert row["class"] in row["prediction_set"].split(" | ")
    (said,) = answer.err.splitlines()
    assert "note: the probabilities rest on 3 validation images, fewer than 30" in said


def test_a_run_that_is_not_calibrated(cli, old, images):
    answer = cli("predict", old, images / "rows")
    assert answer.code == 0
    assert "the probability column is empty: this model is not calibrated; capsella calibrate RUN does it" in answer.err
    assert {row["probability"] for row in csv.DictReader(io.StringIO(answer.out))} == {""}
    for words in (["predict", old, images, "--coverage", 0.9], ["evaluate", old, "--reject"]):
        answer = cli(*words)
        assert answer.code == 1
        assert "capsella calibrate" in answer.err


def test_evaluate_with_rejection(cli, trained):
    answer = cli("evaluate", trained, "--reject")
    assert answer.code == 0
    assert "thresholds from 3 validation images" in answer.out
    assert "3 validation images are too few" in answer.out
    assert (trained / "figures" / "risk_coverage.png").stat().st_size > 1000
    values = json.loads((trained / "test-reject.json").read_text())
    assert values["rejection"]["kept"][0]["kept"] == values["images"] == 6
