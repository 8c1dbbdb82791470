"""Calibration and OOD detection from the command line: `calibrate`, `evaluate --reject` and `--ood`."""

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
    assert cli("calibrate", old).code == 0
    ours, theirs = (json.loads((folder / "calibration.json").read_text()) for folder in (old, trained))
    assert ours["temperature"] == pytest.approx(theirs["temperature"], rel=1e-3)
    assert ours["weights"] == theirs["weights"]
    assert (old / "ood_detector.safetensors").exists()


def test_a_run_that_is_not_calibrated(cli, old, images):
    answer = cli("predict", old, images / "rows")
    assert {row["probability"] for row in csv.DictReader(io.StringIO(answer.out))} == {""}
    for words in (["predict", old, images, "--coverage", 0.9], ["evaluate", old, "--reject"]):
        answer = cli(*words)
        assert answer.code == 1
        assert "capsella calibrate" in answer.err


def test_evaluate_with_selective_classification(cli, trained):
    assert cli("evaluate", trained, "--reject").code == 0
    assert (trained / "figures" / "risk_coverage.png").stat().st_size > 1000
    values = json.loads((trained / "test-reject.json").read_text())
    assert values["selective"]["kept"][0]["kept"] == values["images"] == 6


def test_evaluate_with_ood_images(cli, trained, images):
    answer = cli("evaluate", trained, "--ood", "noise", "half", images / "rings", "--ood-false-positive-rate", 0.85)
    assert answer.code == 0, answer.err
    values = json.loads((trained / "test-ood.json").read_text())["ood"]
    assert [result["name"] for result in values["ood"]] == ["noise", "half", str(images / "rings")]
    assert values["test"]["images"] == 6
    assert (trained / "figures" / "ood.png").stat().st_size > 1000
