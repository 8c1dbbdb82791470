"""Images that a network does not know, from the command line: `predict`, `evaluate --elsewhere`, `calibrate`."""

import csv
import io
import json


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


def test_evaluate_elsewhere(cli, trained, images):
    answer = cli("evaluate", trained, "--elsewhere", "noise", "half", images / "rings", "--refuse", 0.85)
    assert answer.code == 0, answer.err
    for text in ("not known %", "known, and right", "areas under the ROC curve", "appearance", "energy"):
        assert text in answer.out
    values = json.loads((trained / "test-elsewhere.json").read_text())["elsewhere"]
    assert [one["name"] for one in values["elsewhere"]] == ["noise", "half", str(images / "rings")]
    assert values["home"]["images"] == 6
    assert (trained / "figures" / "elsewhere.png").stat().st_size > 1000
