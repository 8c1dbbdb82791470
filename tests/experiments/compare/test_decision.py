"""The decision on constructed predictions, counted by hand."""

from pathlib import Path

import numpy as np
import pytest

from capsella.experiments.compare.decision import NetworkResult, TestSetting, decide

IMAGES = 200
LABELS = np.arange(IMAGES) % 5
CLASSES = ("basophil", "eosinophil", "lymphocyte", "monocyte", "neutrophil")


def right(*counts, first=0):
    """A row per seed: that many images right, from the image `first` on."""
    table = np.zeros((len(counts), IMAGES), bool)
    for row, count in zip(table, counts, strict=True):
        row[first : first + count] = True
    return table


def result(family, correct, *, name=None, latency=5.0, validation=5.0):
    return NetworkResult(name or family, name or family, family, correct, validation, (latency, latency), 1000, Path())


def judge(*networks, labels=LABELS, limit=50.0, measure="accuracy", **setting):
    return decide(networks, TestSetting(labels, CLASSES, measure, limit, **setting))


def test_a_clear_winner():
    decision = judge(result("capsules", right(190)), result("CNN", right(150)), result("pretrained", right(160)))
    assert (decision.recommended.name, decision.reason) == ("capsules", "winner")
    assert decision.reference.name == "CNN"
    assert set(decision.differences) == {"capsules", "pretrained"}
    assert decision.differences["capsules"].estimate == pytest.approx(40 / IMAGES)
    assert decision.against["pretrained"].estimate == pytest.approx(-30 / IMAGES)
    assert decision.against["pretrained"].high < 0


def test_within_one_standard_error_the_faster_one():
    slow, quick = result("capsules", right(185), latency=20.0), result("CNN", right(184, first=5), latency=4.0)
    decision = judge(slow, quick)
    assert (decision.recommended.name, decision.reason) == ("CNN", "faster")
    assert judge(slow, result("CNN", right(150), latency=4.0)).recommended.name == "capsules"


def test_who_is_too_slow_or_guesses_is_not_recommended():
    best, other = result("capsules", right(195), latency=80.0), result("CNN", right(150))
    assert judge(best, other).reason == "best useful"
    assert judge(best, other).recommended.name == "CNN"
    assert judge(best, other, limit=4.0).reason == "none fast"
    guessing = judge(result("capsules", right(45)), result("CNN", right(40)))
    assert (guessing.recommended, guessing.reason, guessing.useful) == (None, "none useful", ())


def test_a_class_that_is_never_found():
    misses = np.where(LABELS == 4, False, np.ones((1, IMAGES), bool))
    decision = judge(result("capsules", misses), result("CNN", right(150)))
    assert decision.never_found["capsules"] == [("neutrophil", 40)]
    assert decision.recommended.name == "CNN"
    both = judge(result("capsules", misses), result("CNN", misses.copy()))
    assert (both.recommended, both.reason) == (None, "none complete")


def test_validation_chooses_the_best_of_each_family():
    networks = [
        result("capsules", right(150), name="a", validation=9.0),
        result("capsules", right(199), name="b", validation=10.0),  # the best on test images
        result("CNN", right(140), name="c"),
    ]
    decision = judge(*networks)
    assert [network.name for network in decision.finalists] == ["a", "c"]
    assert decision.recommended.name == "a"
    assert set(decision.differences) == {"a", "b"}


def test_uneven_classes_are_compared_by_balanced_accuracy():
    labels = np.repeat([0, 1], [180, 20])
    frequent = (labels == 0)[None] | (np.arange(IMAGES) >= 195)[None]  # all frequent images, 5 rare ones
    even = np.ones((1, IMAGES), bool)
    even[0, :20] = False  # 160 frequent images, all rare ones
    by = {
        measure: judge(result("capsules", frequent), result("CNN", even), labels=labels, measure=measure)
        for measure in ("accuracy", "balanced accuracy")
    }
    assert by["accuracy"].against["CNN"].estimate == pytest.approx(-5 / IMAGES)
    assert by["balanced accuracy"].recommended.name == "CNN"


def test_folds_and_groups_widen_the_intervals():
    random = np.random.default_rng(0)
    first, second = random.random((1, IMAGES)) < 0.9, random.random((1, IMAGES)) < 0.8
    second[0, :40] = False  # the training of one fold went wrong
    folds, patients = np.repeat(np.arange(5), 40), np.repeat(np.arange(20), 10)
    networks = result("capsules", first), result("CNN", second)
    widths = [
        judge(*networks, **setting).differences["capsules"]
        for setting in ({}, {"folds": folds}, {"folds": folds, "groups": patients})
    ]
    assert widths[0].estimate == widths[1].estimate
    assert widths[0].high - widths[0].low < widths[1].high - widths[1].low
    assert widths[2].degrees < widths[0].degrees
