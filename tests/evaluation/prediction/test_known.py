"""Which images a table calls known: in every format, and of a table that is gone on with."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.errors import CapsellaError
from capsella.evaluation import Certainty, predict_files, predict_table
from capsella.models import create_model, fit_novelty
from capsella.models.novelty.fitted import REASONS


def smooth(number, seed):
    """Smooth grey ramps, one a class."""
    random = np.random.default_rng(seed)
    ramp = np.linspace(0, 255, 20)[None].repeat(20, 0)
    clean = [(ramp if k % 2 else ramp.T) * random.uniform(0.6, 0.9) for k in range(number)]
    return [(one + random.normal(0, 5, one.shape)).clip(0, 255).astype(np.uint8) for one in clean]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = create_model("mazzia2021_efficient_capsnet", image_size=20, classes=("down", "across")).eval()
    for seed in (0, 1):
        pixels = torch.tensor(np.stack(smooth(60, seed)), dtype=torch.float32)[:, None] / 255
        sets = [] if seed == 0 else sets
        sets.append([(pixels, torch.arange(60) % 2)])
    model.novelty = fit_novelty(model, *sets)
    return model


@pytest.fixture
def files(tmp_path):
    """Three ramps, and two images of noise."""
    folder = tmp_path / "new"
    folder.mkdir()
    random = np.random.default_rng(3)
    images = {f"ramp{k}": ramp for k, ramp in enumerate(smooth(3, 2))}
    images |= {f"snow{k}": random.integers(0, 255, (20, 20)) for k in range(2)}
    for name, pixels in images.items():
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{name}.png")
    return folder


def read(out):
    if out.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    if out.suffix == ".jsonl":
        return [json.loads(line) for line in out.read_text().splitlines()]
    rows = list(csv.DictReader(out.read_text().splitlines()))
    words = {"true": True, "false": False}
    return [{**row, "known": words[row["known"]], "why_unknown": row["why_unknown"] or None} for row in rows]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_in_every_format(model, files, tmp_path, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    out = tmp_path / f"t.{ending}"
    written = predict_table(model, [files], out)
    rows = read(out)
    assert [row["known"] for row in rows] == [True] * 3 + [False] * 2
    assert [row["why_unknown"] for row in rows[:3]] == [None] * 3
    reasons = {text.format(class_name=row["class"]) for text in REASONS.values() for row in rows}
    assert {row["why_unknown"] for row in rows[3:]} <= reasons
    assert (written.rows, written.unknown) == (5, 2)


def test_nothing_is_said_where_nothing_is_asked_or_fitted(model, files, tmp_path):
    written = predict_table(
        model, [files], tmp_path / "a.jsonl", certainty=Certainty(novelty=model.novelty, refuse=None)
    )
    assert written.unknown is None
    assert {row["known"] for row in read(tmp_path / "a.jsonl")} == {None}
    assert next(iter(predict_files(model, [files]))).surprises is None
    assert next(iter(predict_files(model, [files], novelty=model.novelty))).surprises.shape == (5,)
    few = Certainty(novelty=model.novelty, refuse=0.001)
    assert few.watched is None
    assert few.notes()[1] == (
        "the known column is empty: to refuse 0.001 takes at least 2302 validation images, and this model was fitted "
        "with 60; a larger --validation, or a larger --refuse, brings it"
    )
    assert predict_table(model, [files], tmp_path / "b.jsonl", certainty=few).unknown is None
    assert {row["known"] for row in read(tmp_path / "b.jsonl")} == {None}


def interrupted(model, files, out, monkeypatch, certainty=None):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("capsella.evaluation.prediction.job._finish", stop)
        with pytest.raises(KeyboardInterrupt):
            predict_table(model, [files], out, certainty=certainty)


def test_a_table_that_is_gone_on_with(model, files, tmp_path, monkeypatch):
    """With another share to refuse, too: the journal holds what it is judged by."""
    whole, out = tmp_path / "whole.csv", tmp_path / "t.csv"
    predict_table(model, [files], whole)
    interrupted(model, files, out, monkeypatch)
    journal = out.with_name("t.csv.journal")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-2]))
    shutil.copy(journal, tmp_path / "u.csv.journal")
    predict_table(model, [files], out, resume=True)
    assert out.read_text() == whole.read_text()
    some = Certainty(novelty=model.novelty, refuse=0.9)
    assert predict_table(model, [files], tmp_path / "u.csv", resume=True, certainty=some).unknown >= 3


def test_one_begun_without_is_not_gone_on_with(model, files, tmp_path, monkeypatch):
    out = tmp_path / "t.csv"
    interrupted(model, files, out, monkeypatch, Certainty())
    with pytest.raises(CapsellaError, match="was begun with another fit of what is known: None"):
        predict_table(model, [files], out, resume=True)
