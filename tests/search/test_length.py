"""How long candidates train, and where their rungs end; an epoch of the recipe here is one step."""

import dataclasses

import pytest

from capsella.errors import CapsellaError
from capsella.training import OptimizerOptions
from tests.search.made import RECIPE, opened


def warmed(steps, epochs=9):
    optimizer = OptimizerOptions(schedule="cosine", warmup_steps=steps)
    return dataclasses.replace(RECIPE, optimizer=optimizer, epochs=epochs)


@pytest.mark.parametrize(("steps", "rungs"), [(0, (1, 3, 9)), (1, (3, 9)), (2, (3, 9)), (3, (9,)), (50, (9,))])
def test_rungs_that_end_within_the_warm_up_are_left_out(tmp_path, steps, rungs):
    assert opened(tmp_path, warmed(steps)).rules.rungs == rungs


def test_less_time_shortens_the_warm_up_alike_so_the_same_rungs_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.search.length.seconds_an_epoch", lambda *_: 1.0)
    search = opened(tmp_path, warmed(40, epochs=270), minutes=30.0)
    epochs = search.trained.epochs
    assert 90 < epochs < 240
    assert search.trained.optimizer.warmup_steps == pytest.approx(40 * epochs / 270, abs=1)
    assert search.rules.rungs == (round(epochs / 3), epochs)
    assert opened(tmp_path, warmed(40, epochs=270), minutes=30.0).rules == search.rules


def test_a_study_with_other_rungs_is_refused(tmp_path, monkeypatch):
    opened(tmp_path, warmed(2))
    monkeypatch.setattr("capsella.search.length.rungs_of", lambda *_: (1, 3, 9))
    with pytest.raises(CapsellaError, match="begun with another rungs"):
        opened(tmp_path, warmed(2))
