"""What a report says of a training that stops at an error."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from capsella.data import NamedData, load_data
from capsella.evaluation import Evaluation
from capsella.papers.sabour2017.recipes import sabour2017_affnist
from capsella.report import about_training
from capsella.report.prose import Training, about_result, limits

DIGITS = NamedData("digits", size=28)
BEST = {"epoch": 3.0, "validation_error": 12.5}


def told(stopped, **changes):
    """The paragraphs on a run of digits, of which epoch 3 was kept of 9."""
    recipe = replace(sabour2017_affnist(), data=DIGITS, **changes)
    run = SimpleNamespace(recipe=recipe, model=SimpleNamespace(name="capsnet"))
    return about_training(run, load_data(DIGITS), {"best": BEST, "epochs": 9, "stopped": stopped}).paragraphs


@pytest.mark.parametrize("reached", [True, False])
def test_images_that_stopped_a_training_are_no_test(reached):
    trained, chosen = told({"reached": reached, "at_error": 0.77, "on": "test"})
    assert "neither to train nor to choose" not in trained
    assert ("the training stopped by their error" in trained) == reached
    assert ("to stop at an error that was not reached" in trained) != reached
    assert ("Kept: epoch 3 of 9, at which the training ended." in chosen) == reached
    missed = (
        "which had the lowest error, on the validation images (12.5 %). The training was to stop at an error of 0.77 %"
    )
    assert (missed in chosen) != reached


def test_a_training_that_stops_by_validation_leaves_the_test_images_alone():
    trained, _ = told({"reached": True, "at_error": 5, "on": "validation"}, stop_on="validation")
    assert "were used neither to train nor to choose" in trained


def test_validation_images_that_chose_no_epoch_are_not_said_to_have():
    trained, chosen = told(None, keep="last")
    assert "others (validation images) were held out, and did not choose the epoch." in trained
    assert "others (validation images) were used to choose the epoch." in told(None, keep="best")[0]
    assert "at which the training ended" in chosen


def test_the_images_are_the_reason_of_a_balance_only_where_they_call_for_it():
    assert "(balance: none): " in told(None, balance="none")[1]
    assert told(None, balance="weights")[1].endswith("Mistakes on rare classes counted more (balance: weights).")


def test_the_epoch_was_chosen_by_what_stopped_the_training():
    stop = {"reached": True, "at_error": 5}
    for keep in ("best", "last"):
        by_validation, _ = told({**stop, "on": "validation"}, stop_on="validation", keep=keep)
        assert "others (validation images) decided when the training stopped, and so the epoch." in by_validation
        by_test, _ = told({**stop, "on": "test"}, keep=keep)
        assert "others (validation images) were held out, and did not choose the epoch." in by_test
    missed, _ = told({**stop, "reached": False, "on": "test"}, keep="best")
    assert "others (validation images) were used to choose the epoch." in missed


def test_chance_and_limits_of_pairs_and_of_groups():
    labels = torch.tensor([[0, 1], [1, 2], [2, 0], [3, 1]])
    pairs = Evaluation(torch.rand(4, 4), labels, ("a", "b", "c", "d"))
    assert "2 blind guesses among the 4 classes would find 50.0 %." in about_result(pairs)[1]
    assert not any("capsella predict writes" in line for line in limits(pairs, None))
    single = Evaluation(torch.rand(4, 4), labels[:, 0], pairs.classes, group=torch.tensor([0, 0, 1, 1]))
    assert "A blind guess among the 4 classes would find 25.0 %." in about_result(single)[1]
    known = limits(single, Training(("",), grouped=False))
    assert any(line.startswith("Others than the 2 groups of these images") for line in known)
    assert not any("Nothing told which images belong together" in line for line in known)
    assert any("capsella predict writes calibrated probabilities" in line for line in known)
