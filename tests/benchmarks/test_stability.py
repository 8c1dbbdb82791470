import csv
import json
import math

import torch
from PIL import Image
from rich.console import Console

from benchmarks.plain import PlainEMRouting
from benchmarks.stability import Point, Study, not_finite, run, spikes, train
from capsella.data import ImageSet


def points(accuracies):
    return [Point("x", 10 * k, 0.1, accuracy, 1.0) for k, accuracy in enumerate(accuracies, start=1)]


def test_a_spike_is_a_fall_to_chance_after_learning():
    """Five classes, 100 images a point: at chance is up to 0.2 + 2·0.04."""
    assert spikes(points([0.2, 0.25, 0.7, 0.28, 0.9, 0.29, 0.1]), 5, 100) == [40, 70]
    assert spikes(points([0.2, 0.5, 0.2]), 5, 100) == []


def test_the_first_number_that_is_none_is_found():
    curve = points([0.2, 0.3])
    assert not_finite(curve) is None
    assert not_finite([*curve, Point("x", 27, 0.1, 0.3, math.inf)]) == 27


def test_two_trainings_one_start(tmp_path):
    study = Study(tmp_path, data="digits", images_per_class=2, steps=2, batch=2, log_every=1, competition="types")
    summaries = run(study, Console(quiet=True))
    assert [summary.steps for summary in summaries.values()] == [2, 2]
    rows = list(csv.DictReader((tmp_path / "stability.csv").open()))
    assert [(row["routing"], row["step"]) for row in rows] == [
        (name, step) for name in ("capsella", "plain") for step in "12"
    ]
    # The same weights and the same images: the first losses differ by rounding.
    assert math.isclose(float(rows[0]["loss"]), float(rows[2]["loss"]), rel_tol=1e-4)
    document = json.loads((tmp_path / "stability.json").read_text())
    assert document["study"]["steps"] == 2
    assert document["trainings"]["plain"]["not_finite_at"] is None
    assert Image.open(tmp_path / "stability.png").size == (880, 660)


def test_training_ends_where_numbers_are_not_finite(tmp_path, monkeypatch):
    study = Study(tmp_path, steps=3, batch=2, log_every=2)
    images = ImageSet(torch.zeros(2, 1, 32, 32, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))
    monkeypatch.setattr(PlainEMRouting, "_inverse_temperature_at", lambda self, iteration: math.nan)
    (point,) = train(study, "plain", PlainEMRouting(competition="types"), images)
    assert point.step == 1
    assert math.isnan(point.loss)
