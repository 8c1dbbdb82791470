"""`capsella predict`."""

import csv
import io

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


def test_the_images_to_label_first(cli, trained, images, tmp_path):
    words = ["predict", trained, images, "--label-next", 4, "--out", tmp_path / "next.csv"]
    assert cli(*words).code == 0
    head, *rows = table((tmp_path / "next.csv").read_text())
    assert (head, len(rows)) == (["file", "class", "probability"], 4)
    assert cli(*words).code == 1  # it exists
    assert cli(*words[:-2]).code == 2  # without a file
    assert cli(*words, "--overwrite", "--coverage", 0.9).code == 2


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
