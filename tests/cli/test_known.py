"""Images that a network does not know, from the command line: `predict`, `evaluate --elsewhere`, `calibrate`."""

import csv
import io
import json
import shutil

import pytest


@pytest.fixture
def old(trained, tmp_path):
    """A run from before it was fitted."""
    folder = tmp_path / "old"
    shutil.copytree(trained, folder)
    (folder / "novelty.safetensors").unlink()
    return folder


def columns(text):
    return [(row["known"], row["why_unknown"]) for row in csv.DictReader(io.StringIO(text))]


def test_predict_says_how_many_are_not_known(cli, trained, images, tmp_path):
    """With three validation images, nearly all may be refused."""
    answer = cli("predict", trained, images, "--refuse", 0.85, "--out", tmp_path / "t.csv")
    assert answer.code == 0, answer.err
    rows = columns((tmp_path / "t.csv").read_text())
    unknown = [why for known, why in rows if known == "false"]
    assert len(rows) == 33
    assert 0 < len(unknown) < 33
    assert all(unknown)
    assert all(why == "" for known, why in rows if known == "true")
    assert f"{len(unknown)} of 33 not known: unlike the training images" in answer.err
    assert f"{len(unknown)} of 33 not known" in cli("predict", trained, images, "--refuse", 0.85).err


def test_predict_without(cli, trained, images):
    answer = cli("predict", trained, images / "rows", "--refuse", 0)
    assert answer.code == 0
    assert "the known column" not in answer.err
    assert columns(answer.out) == [("", "")] * 11


def test_an_old_run_leaves_the_columns_empty_until_it_is_fitted(cli, old, images):
    answer = cli("predict", old, images / "rows")
    assert columns(answer.out) == [("", "")] * 11
    assert "the known column is empty: it was not fitted for this model; capsella calibrate RUN does it" in answer.err
    refused = cli("evaluate", old, "--elsewhere", "noise")
    assert refused.code == 1
    assert f"elsewhere: {old} has no novelty.safetensors; run capsella calibrate {old}" in refused.err
    fitted = cli("calibrate", old)
    assert "an image is known by its appearance, features, poses" in fitted.out
    assert "beside those of 3 validation images" in fitted.out
    answer = cli("predict", old, images / "rows")
    assert columns(answer.out) == [("", "")] * 11
    assert "the known column is empty: to refuse 0.05 takes at least 45 validation images" in answer.err
    assert "not known: unlike the training images" not in answer.err


def test_evaluate_elsewhere(cli, trained, images):
    answer = cli("evaluate", trained, "--elsewhere", "noise", "half", images / "rings", "--refuse", 0.85)
    assert answer.code == 0, answer.err
    for text in ("not known %", "known, and right", "areas under the ROC curve", "appearance", "energy"):
        assert text in answer.out
    values = json.loads((trained / "test-elsewhere.json").read_text())["elsewhere"]
    assert [one["name"] for one in values["elsewhere"]] == ["noise", "half", str(images / "rings")]
    assert values["home"]["images"] == 6
    assert (trained / "figures" / "elsewhere.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["evaluate", "RUN", "--elsewhere", "nowhere"], "elsewhere: must be noise, half, a source or a folder"),
        (["evaluate", "RUN", "--elsewhere", "noise", "--crops"], "elsewhere: only with the run's own test images"),
        (["predict", "RUN", "IMAGES", "--refuse", 5], "refuse: must be between 0 and 1, as 0.05, got 5.0"),
        (["attack", "RUN", "--refuse", 0], "refuse: must be between 0 and 1, as 0.05, got 0"),
    ],
)
def test_flags_that_cannot_be(cli, trained, images, words, text, monkeypatch):
    monkeypatch.setattr("capsella.cli.evaluate.evaluate", None)  # nothing is evaluated before they are refused
    answer = cli(*({"RUN": trained, "IMAGES": images}.get(word, word) for word in words))
    assert answer.code != 0
    assert text in " ".join(answer.err.split())
