"""Thresholds come from validation images, errors from test images."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from capsella.evaluation import Evaluation, measure_rejection, rejection_table
from capsella.evaluation.rejection.measure import risk_curve, threshold_for
from capsella.models import create_model, fit_confidence
from capsella.report import risk_coverage_figure

CLASSES = ("a", "b", "c")


def evaluation(number, seed):
    """Sharpened answers: the surer, the oftener right."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(number, 3, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return Evaluation((3 * logits).softmax(1), labels, CLASSES)


@pytest.fixture
def calibrated():
    """A network whose answers those evaluations are said to be."""
    model = create_model("sabour2017_cnn", image_size=2, classes=CLASSES)
    validation = evaluation(1000, 0)
    model.confidence = fit_confidence(validation.activations, validation.labels)
    return model, validation


def test_the_error_falls_and_the_thresholds_are_those_of_validation(calibrated):
    model, validation = calibrated
    test = evaluation(2000, 1)
    result = measure_rejection(model, validation, test)
    sure = model.confidence.probabilities(validation.activations).max(1).values.numpy()
    by_share = {one.share: one for one in result.kept}
    assert (by_share[1.0].kept, by_share[1.0].errors, by_share[1.0].threshold) == (2000, test.errors, 0)
    exact = np.sort(sure)[::-1][799]
    assert exact - 1e-6 <= by_share[0.8].threshold <= exact
    printed = float(f"{by_share[0.8].threshold:.6f}")  # what a reader hands on keeps the same images
    tested = model.confidence.probabilities(test.activations).max(1).values
    assert int((tested >= printed).sum()) == by_share[0.8].kept
    assert by_share[0.8].kept == pytest.approx(1600, abs=80)
    risks = [one.errors / one.kept for one in result.kept]
    assert risks == sorted(risks, reverse=True)
    assert risks[-1] < risks[0] / 2
    assert result.ece < result.ece_before / 3
    other = measure_rejection(model, validation, evaluation(50, 2))
    assert [one.threshold for one in other.kept] == [one.threshold for one in result.kept]


def test_sets_hold_the_true_class_as_often_as_asked(calibrated):
    result = measure_rejection(*calibrated, evaluation(2000, 1))
    for one in result.sets:
        assert one.held / 2000 >= one.coverage - 0.03
        assert one.worst <= one.held / 2000
        assert one.single <= 2000
    assert [one.mean_size for one in result.sets] == sorted(one.mean_size for one in result.sets)
    assert result.notes() == []


def test_copies_of_an_image_prove_no_more_than_the_image(calibrated):
    few = evaluation(200, 1)
    which = torch.arange(200).repeat(10)
    copied = Evaluation(few.activations[which], few.labels[which], CLASSES, group=which)
    alone, grouped = (measure_rejection(*calibrated, of) for of in (few, copied))
    ungrouped = measure_rejection(*calibrated, replace(copied, group=None))
    for name in ("kept", "sets"):
        for one, other, narrow in zip(*(getattr(of, name) for of in (alone, grouped, ungrouped)), strict=True):
            field = "error_interval_95" if name == "kept" else "held_interval_95"
            intervals = [getattr(of, field) for of in (one, other, narrow)]
            if 0 not in intervals[0] and 1 not in intervals[0]:
                plain, over, images = (high - low for low, high in intervals)
                assert over == pytest.approx(plain, rel=0.1)
                assert images < 0.5 * plain


def test_few_validation_images_are_named(calibrated):
    model, _ = calibrated
    few = evaluation(12, 3)
    model.confidence = fit_confidence(few.activations, few.labels)
    result = measure_rejection(model, few, evaluation(100, 1))
    assert result.notes() == [
        "12 validation images are too few, so sets hold all classes: 0.95 needs 19, 0.99 needs 99"
    ]
    assert {one.coverage: one.mean_size for one in result.sets}[0.99] == 3


def test_equally_sure_images_are_kept_together():
    sure, correct = np.array([0.9, 0.6, 0.6, 0.6]), np.array([True, False, True, True])
    np.testing.assert_allclose(risk_curve(sure, correct), [[0.25, 1], [0, 0.25]])
    assert threshold_for(np.full(3, 0.5), 0.5) == 0.5
    assert threshold_for(np.full(10, 1 - 2.5e-13), 0.5) == 0.999999  # never above the image that it is to keep
    with pytest.raises(ValueError, match="share: must be above 0 and at most 1, got 0"):
        threshold_for(sure, 0)


def test_as_tables_json_and_picture(calibrated):
    result = measure_rejection(*calibrated, evaluation(200, 1))
    result = replace(result, sets=tuple(replace(one, worst_class="neutrophil") for one in result.sets))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(rejection_table(result))
    text = console.export_text()
    assert "thresholds from 1000 validation images" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "…" not in text
    assert len(re.findall(r"0\.\d+ to \d\.\d+ .* neutrophil │", text)) == len(result.sets)  # a line each
    values = result.to_dict()
    assert values["kept"][0]["errors"] == result.kept[0].errors
    assert values["prediction_sets"][0]["coverage"] == 0.8
    (axes,) = risk_coverage_figure(result).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "test", "validation", "test, at thresholds from validation"
    ]  # fmt: skip


def test_what_cannot_be_measured(calibrated):
    model, validation = calibrated
    pairs = Evaluation(torch.rand(2, 3), torch.tensor([[0, 1], [1, 2]]), CLASSES)
    with pytest.raises(ValueError, match="must show one class an image"):
        measure_rejection(model, validation, pairs)
    model.confidence = None
    with pytest.raises(ValueError, match="model: must be calibrated"):
        measure_rejection(model, validation, validation)
