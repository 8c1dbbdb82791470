"""The curve of accuracy by labelled images: what is drawn and tested, and the files. Adaptation itself is replaced."""

import json
import sys

import pytest

from capsella.data import draw_labelled
from capsella.evaluation import evaluate
from capsella.evaluation.domain import domain_for
from capsella.models import create_model
from capsella.papers.own_images import images_efficient
from capsella.training import Run
from tests.trained import CLASSES, SIZE
from tools import adaptation_curve


def test_from_a_run_to_the_figure(image_folder, tmp_path, monkeypatch):
    model = create_model(
        "mazzia2021_efficient_capsnet", image_size=SIZE, channels=1, classes=CLASSES, reconstruction=False
    )
    run = Run(tmp_path / "run", "cells", images_efficient(), model.eval(), {})
    calls = []

    def adapt(model, recipe, images, options):
        calls.append((images, options))
        return model

    out = tmp_path / "curve.json"
    command = [str(image_folder), "--out", str(out), "--draws", "2", "--how", "statistics", "last"]
    monkeypatch.setattr(sys, "argv", ["adaptation_curve", "run", *command])
    monkeypatch.setattr(adaptation_curve, "open_run", lambda path: run)
    monkeypatch.setattr(adaptation_curve, "adapt_model", adapt)
    monkeypatch.setattr(adaptation_curve, "SIZES", (0, 2, 4))
    adaptation_curve.main()
    assert [(options.seed, options.how, len(images)) for images, options in calls] == [
        (seed, how, 3 * size) for seed in (0, 1) for how in ("statistics", "last") for size in (2, 4)
    ]
    # The smaller draw is that of `capsella adapt` with the same seed.
    every = domain_for(run, str(image_folder)).images
    assert sorted(calls[4][0].files) == sorted(draw_labelled(every, 2, 1)[0].files)
    values = json.loads(out.read_text())
    assert values["tested"] == [21, 21]
    assert values["without_labels"]["as it is"] == list(adaptation_curve.measured(evaluate(model, every)))
    assert len(values["without_labels"]) == 4
    assert [(row["how"], row["per_class"]) for row in values["rows"]] == [
        (how, size) for how in ("statistics", "last") for size in (0, 2, 4)
    ]
    accuracy = values["rows"][0]["accuracy"]
    assert accuracy["mean"] == pytest.approx(sum(accuracy["draws"]) / 2)
    assert accuracy == values["rows"][1]["accuracy"]  # this adaptation changes nothing
    assert out.with_suffix(".png").stat().st_size > 1000
