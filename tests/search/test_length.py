"""How long candidates train, and where their rungs end; an epoch of the recipe here is one step."""

import dataclasses
import math

import pytest

from capsella.errors import CapsellaError
from capsella.search import Choice, Images, Space, open_search
from capsella.search.schedule import expected_epochs, rungs_of
from capsella.training import OptimizerOptions
from capsella.training.timing import StepTime
from tests.search.made import OPTIONS, RECIPE, an_epoch_takes, opened, read


def warmed(steps, epochs=9):
    optimizer = OptimizerOptions(schedule="cosine", warmup_steps=steps)
    return dataclasses.replace(RECIPE, optimizer=optimizer, epochs=epochs)


@pytest.mark.parametrize(("steps", "rungs"), [(0, (1, 3, 9)), (1, (3, 9)), (2, (3, 9)), (3, (9,)), (50, (9,))])
def test_rungs_that_end_within_the_warm_up_are_left_out(tmp_path, steps, rungs):
    assert opened(tmp_path, warmed(steps)).rules.rungs == rungs


def test_less_time_shortens_the_warm_up_alike_so_the_same_rungs_are_left_out(tmp_path, monkeypatch):
    an_epoch_takes(monkeypatch, 1.0)
    search = opened(tmp_path, warmed(40, epochs=270), minutes=30.0)
    epochs = search.trained.epochs
    assert 90 < epochs < 240
    assert search.trained.optimizer.warmup_steps == pytest.approx(40 * epochs / 270, abs=1)
    assert search.rules.rungs == (round(epochs / 3), epochs)
    assert opened(tmp_path, warmed(40, epochs=270), minutes=30.0).rules == search.rules


def test_a_study_of_an_earlier_version_goes_on_with_its_rungs(tmp_path):
    study = opened(tmp_path, warmed(2)).study
    kept = dict(study.settings)
    study.trials.set_user_attr("settings", {**kept, "rungs": [1, 9]})
    assert opened(tmp_path, warmed(2)).rules.rungs == (1, 9)
    del kept["rungs"]  # a warm-up left none out
    study.trials.set_user_attr("settings", kept)
    assert opened(tmp_path, warmed(2)).rules.rungs == (1, 3, 9)


def test_the_largest_batch_has_the_longest_warm_up(tmp_path):
    """Forty images: two epochs of the recipe's batch of 20 are four of one of 40."""
    space = Space({"batch_size": Choice(10, 20, 40)})
    recipe = dataclasses.replace(warmed(2), epoch_images=20)
    options = dataclasses.replace(OPTIONS, out=tmp_path)
    assert open_search(recipe, "tiny", options, space, images=Images(read)).rules.rungs == (3, 9)
    longer = dataclasses.replace(recipe, epoch_images=40)
    options = dataclasses.replace(OPTIONS, out=tmp_path / "longer")
    assert rungs_of(9, 1.0) == open_search(longer, "tiny", options, space, images=Images(read)).rules.rungs


def test_a_plan_fits_into_its_time(tmp_path, monkeypatch):
    """Where rung ends are rounded, the real length may leave out a rung that nine epochs have."""
    an_epoch_takes(monkeypatch, 1.0)
    for minutes in (4, 5, 6, 8, 10):
        search = opened(tmp_path / str(minutes), warmed(28, epochs=270), minutes=float(minutes))
        assert 9 <= search.trained.epochs < 270
        assert expected_epochs(search.rules, OPTIONS.trials) <= 0.85 * 60 * minutes


def test_a_space_must_not_name_the_warm_up():
    space = Space({"optimizer.warmup_steps": Choice(0, 40)})
    with pytest.raises(CapsellaError, match="warmup_steps"):
        space.check(warmed(40))


def test_stairs_of_the_margin_and_the_decay_keep_their_proportion(tmp_path, monkeypatch):
    an_epoch_takes(monkeypatch, 1.0)
    stairs = dataclasses.replace(RECIPE.loss, name="spread", spread_schedule="stairs")
    recipe = dataclasses.replace(warmed(40, epochs=270), loss=stairs)
    search = opened(tmp_path / "stairs", recipe, minutes=30.0)
    share = search.trained.epochs / 270
    assert search.trained.loss.spread_steps == pytest.approx(3000 * share, rel=0.02)
    assert search.trained.optimizer.decay_steps == pytest.approx(2000 * share, rel=0.02)
    assert opened(tmp_path / "stairs", recipe, minutes=30.0).trained == search.trained
    settings = search.study.settings  # of a study that was begun before this was kept
    kept = {name: value for name, value in settings["length"].items() if name != "spread_steps"}
    search.study.trials.set_user_attr("settings", {**settings, "length": kept})
    assert opened(tmp_path / "stairs", recipe, minutes=30.0).trained.loss == recipe.loss
    whole = dataclasses.replace(recipe.optimizer, decay_steps=None)
    search = opened(tmp_path / "whole", dataclasses.replace(warmed(40, epochs=270), optimizer=whole), minutes=30.0)
    assert (search.trained.optimizer.decay_steps, search.trained.loss.spread_steps) == (None, None)


def test_short_epochs_are_validated_whole_and_the_plan_counts_it(tmp_path, monkeypatch):
    step, validation = 1.0, 20.0
    monkeypatch.setattr("capsella.search.length.time_of", lambda *_: (StepTime(step, 0.0), validation))
    recipe = dataclasses.replace(warmed(0), batch_size=2)  # ten steps an epoch
    whole = 9 * (10 * step + validation)
    search = opened(tmp_path / "some", recipe, minutes=60.0)
    assert (search.trained.epochs, search.trained.epoch_images) == (9, None)
    epochs = expected_epochs(search.rules, OPTIONS.trials)
    for minutes in (epochs * (4.5 * step + validation) / 51, epochs * (2.5 * step + validation) / 51):
        search = opened(tmp_path / f"{minutes}", recipe, minutes=minutes)
        steps = search.trained.epoch_images // 2
        assert steps == (4 if minutes > epochs * (4 * step + validation) / 51 else 2)
        assert epochs * (steps * step + validation) <= 51 * minutes < epochs * whole / 9
    needed = math.ceil(epochs * (2 * step + validation) / 51)
    with pytest.raises(ValueError, match=f"minutes: must be at least {needed} here"):
        opened(tmp_path / "none", recipe, minutes=epochs * (1.9 * step + validation) / 51)
    assert opened(tmp_path / "least", recipe, minutes=float(needed)).trained.epoch_images >= 4
