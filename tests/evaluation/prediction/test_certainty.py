"""The columns behind the activations: probability, prediction set, unsure; empty rather than pretending."""

import csv
import dataclasses
import json
from pathlib import Path

import pytest
import torch

from capsella.errors import CapsellaError
from capsella.evaluation import Certainty, Prediction, predict_files, predict_table, write_table
from capsella.models import fit_confidence

KNOWN = ("known", "why_unknown")


@pytest.fixture
def confidence():
    """Fitted on 40 images, a quarter of them at odds of two to one and half of those wrong."""
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(40, generator=generator)
    labels = (torch.rand(40, generator=generator) > first).long()
    return fit_confidence(torch.stack([first, 1 - first], 1), labels)


def test_columns_as_asked(confidence):
    assert Certainty().columns == Certainty(confidence).columns == ("probability", *KNOWN)
    assert Certainty(confidence, 0.9, 0.8).columns == ("probability", "prediction_set", "unsure", *KNOWN)
    assert Certainty(confidence, unsure_below=0.8).columns == ("probability", "unsure", *KNOWN)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_in_every_format(folder, tmp_path, darkness, confidence, ending):
    if ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow.parquet")
    darkness.confidence = confidence
    certainty, out = Certainty(confidence, 0.95, 0.9), tmp_path / f"t.{ending}"
    predict_table(darkness, [folder], out, certainty=certainty)
    predictions = list(predict_files(darkness, [folder]))
    if ending == "csv":
        with open(out, newline="") as file:
            rows = list(csv.DictReader(file))
        rows = [
            {**row, "prediction_set": row["prediction_set"].split(" | "), "unsure": row["unsure"] == "true"}
            for row in rows
        ]
    elif ending == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        rows = pyarrow.read_table(out).to_pylist()
    assert len(rows) == 3
    for row, prediction in zip(rows, predictions, strict=True):
        probabilities = confidence.probabilities(prediction.activations)
        assert float(row["probability"]) == pytest.approx(float(probabilities.max()), abs=1e-6)
        assert row["unsure"] == (float(probabilities.max()) < 0.9)
        inside = confidence.sets(prediction.activations, 0.95).tolist()
        assert set(row["prediction_set"]) == {n for n, yes in zip(darkness.classes, inside, strict=True) if yes}
        assert row["prediction_set"][0] == prediction.class_name == row["class"]


def test_the_probability_is_that_of_the_predicted_class(confidence):
    """After balanced training a common class may be the more probable one; the answer stays what the network says."""
    shifted = dataclasses.replace(confidence, prior=(2.0, -2.0))
    prediction = Prediction(Path("x.png"), "b", torch.tensor([0.4, 0.6]))
    probabilities = shifted.probabilities(prediction.activations)
    assert probabilities[0] > probabilities[1]
    values = Certainty(shifted, 0.9, 0.9).values(prediction)
    assert values[0] == pytest.approx(float(probabilities[1]), abs=1e-6)
    assert values[1][0] == 0  # the likeliest first
    assert 1 in values[1]
    assert values[2] is True


def test_a_calibrated_model_says_its_probability_and_others_leave_it_empty(folder, tmp_path, darkness, confidence):
    predict_table(darkness, [folder], tmp_path / "a.jsonl")
    darkness.confidence = confidence
    predict_table(darkness, [folder], tmp_path / "b.jsonl")
    a, b = ([json.loads(line) for line in (tmp_path / f"{n}.jsonl").read_text().splitlines()] for n in "ab")
    assert [row["probability"] for row in a] == [None] * 3
    assert all(0.5 <= row["probability"] <= 1 for row in b)
    assert [row["activations"] for row in a] == [row["activations"] for row in b]


def test_what_is_gone_on_with_may_have_other_columns(folder, tmp_path, darkness, confidence, monkeypatch):
    """The journal holds activations alone."""
    darkness.confidence, out = confidence, tmp_path / "t.csv"

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("capsella.evaluation.prediction.job._finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            predict_table(darkness, [folder], out)
    predict_table(darkness, [folder], out, resume=True, certainty=Certainty(confidence, 0.5))
    assert out.read_text().startswith('file,class,"dark, plain",light,probability,prediction_set,known,why_unknown\n')


def test_notes(confidence):
    empty = (
        "the known column is empty: it was not fitted for this model; "
        "capsella calibrate RUN does it, unless the run was adapted"
    )
    assert "capsella calibrate RUN" in Certainty().notes()[0]
    assert Certainty().notes()[1] == empty
    assert Certainty(confidence, 0.95).notes() == [empty]
    assert Certainty(confidence, 0.95, refuse=None).notes() == []
    assert Certainty(confidence, 0.99, refuse=None).notes() == [
        "every prediction set holds all classes: a coverage of 0.99 needs at least 99 validation images, and this "
        "model was calibrated on 40"
    ]
    (note,) = Certainty(dataclasses.replace(confidence, scores=confidence.scores[:6]), refuse=None).notes()
    assert "rest on 6 validation images, fewer than 30: they may be far too sure" in note


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"coverage": 1.0}, r"coverage: must be between 0 and 1, as 0\.95, got 1\.0"),
        ({"coverage": 0.0}, "coverage: must be between 0 and 1"),
        ({"unsure_below": 0.0}, r"unsure_below: must be above 0 and at most 1, as 0.9, got 0\.0"),
        ({"refuse": 5.0}, r"refuse: must be between 0 and 1, as 0\.05, got 5\.0"),
        ({"unsure_below": 1.5}, "unsure_below: must be above 0 and at most 1"),
    ],
)
def test_what_cannot_be_asked(confidence, options, text):
    with pytest.raises(ValueError, match=text):
        Certainty(confidence, **options)


def test_asking_a_model_that_is_not_calibrated():
    with pytest.raises(CapsellaError, match=r"need calibrated probabilities.*capsella calibrate RUN"):
        Certainty(None, coverage=0.9)


def test_parquet_columns_of_certainty_have_one_name(tmp_path, confidence):
    pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="a class is called 'unsure'"):
        write_table([], ("a", "unsure"), tmp_path / "t.parquet", Certainty(confidence, None, 0.5))
