"""The time left, by hand."""

import pytest

from capsella.grid import Clock


def test_an_unknown_cost_takes_the_mean_of_the_others():
    clock = Clock()
    clock.plan(["a", "a", "b"])
    assert clock.seconds_left() is None
    assert clock.line("first") == "run 1 of 3: first"
    clock.finish("a", 10.0)
    assert clock.seconds_left() == 20.0
    clock.finish("a", 20.0)
    assert clock.seconds_left() == 15.0


def test_a_run_that_was_finished_before_counts_and_takes_no_time():
    clock = Clock()
    clock.plan(["a", "a"])
    clock.remember("a", 30.0)
    clock.finish("a")
    assert clock.line("second") == "run 2 of 2: second; about 30 s left"


def test_what_was_planned_before_is_not_counted_twice():
    clock = Clock()
    clock.plan(["a", "a", "share"])
    clock.plan(["a", "a"])
    assert clock.left.total() == 3


def test_estimates_are_corrected_by_what_runs_took():
    clock = Clock({"a": 10.0, "b": 100.0})
    clock.plan(["a", "b"])
    assert clock.seconds_left() == 110.0
    clock.finish("a", 20.0)  # twice as long; the estimate keeps a tenth of the whole as its weight
    pace = (20 + 11) / (10 + 11)
    assert clock.seconds_left() == pytest.approx(100 * pace)
