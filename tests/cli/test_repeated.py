"""`capsella train --folds`: every image tested once, by a run that never saw it."""

import csv
import json
import shutil

import pytest
from PIL import Image

from capsella.cli import main
from capsella.experiments import runner
from tests.cli.conftest import NARROW
from tests.trained import SHORT

QUICK = [*NARROW, *SHORT]


@pytest.fixture(scope="module")
def folded(images):
    """The folder that `capsella train … --folds 3` leaves."""
    folder = images.parent / "folds"
    main(["train", "images-capsnet", str(images), *QUICK, "--folds", "3", "--out", str(folder)])
    return folder


def predictions(folder):
    with open(folder / "predictions.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_every_image_is_tested_once(folded):
    rows = predictions(folded)
    assert len({row["file"] for row in rows}) == len(rows) == 33
    values = json.loads((folded / "folds.json").read_text())
    tests = [json.loads((folded / f"fold{fold}" / "test.json").read_text()) for fold in range(3)]
    assert [one["errors"] for one in values["folds"]] == [test["errors"] for test in tests]
    wrong = [row for row in rows if row["class"] != row["predicted"]]
    assert values["pooled"]["errors"] == len(wrong) == sum(test["errors"] for test in tests)
    for fold, one in enumerate(values["folds"]):
        assert one["errors"] == sum(row["fold"] == str(fold) for row in wrong)
    low, high = values["error"]["interval_95_percent"]
    assert low < values["error"]["mean_percent"] < high


def test_an_interrupted_call_goes_on(cli, images, folded, tmp_path, monkeypatch):
    words = ["train", "images-capsnet", images, *QUICK, "--folds", 3, "--out", tmp_path / "f"]
    usual, trained = runner.train_or_resume, []

    def stopped(recipe, folder, *arguments):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(folder)
        return usual(recipe, folder, *arguments)

    monkeypatch.setattr(runner, "train_or_resume", stopped)
    interrupted = cli(*words)
    assert interrupted.code == 130
    assert "the same command goes on" in interrupted.out
    monkeypatch.chdir(tmp_path)
    assert "the same command with --out runs/images-capsnet goes on" in cli(*words[:-2]).out
    assert not (tmp_path / "f" / "folds.json").exists()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "f").glob("fold*/summary.json")}
    assert len(stamps) == 2
    monkeypatch.undo()
    answer = cli(*words)
    assert answer.code == 0
    assert "run 3 of 3: fold 2" in answer.out
    assert "run 2 of 3" not in answer.out
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert json.loads((tmp_path / "f" / "folds.json").read_text()) == json.loads((folded / "folds.json").read_text())


def test_a_file_that_arrives_between_folds_is_an_error(cli, images, tmp_path, monkeypatch):
    """Else the folds would overlap: one image would be tested twice, another never."""
    usual, own = runner.train_or_resume, tmp_path / "own"
    shutil.copytree(images, own)
    copy = next(own.rglob("*.png"))

    def followed_by_a_file(*arguments):
        run = usual(*arguments)
        Image.open(copy).transpose(Image.Transpose.ROTATE_90).save(copy.with_name("late.png"))
        return run

    monkeypatch.setattr(runner, "train_or_resume", followed_by_a_file)
    answer = cli("train", "images-capsnet", own, *QUICK, "--folds", 3, "--out", tmp_path / "f")
    assert answer.code == 1
    assert "own has changed since this training began" in answer.err
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["fold0"]
