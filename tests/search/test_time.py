"""What a worker begins when little time is left, and what one that dies in a draw leaves behind."""

import time

import pytest

from capsella.search import worker
from capsella.search.cost import Costs
from capsella.search.sampler import RungSampler
from capsella.search.schedule import Job, Record
from capsella.search.storage import storage_url
from capsella.search.study import Study
from tests.search.made import SPACE, opened


def finished(candidate, number, rung=2, seed=0, error=50.0):
    return Record(number, Job(candidate, rung, seed), "done", (error,), epochs=9, seconds=900.0)


@pytest.fixture
def late(tmp_path):
    """A function: a worker with so many seconds left; rungs end after 1, 3 and 9 epochs, two seeds, one finalist."""
    search = opened(tmp_path, trials=None, minutes=600.0, finalists=1)

    def left(seconds):
        costs = Costs(search.options, search.images)
        return worker.Worker(search, costs, print, print, deadline=time.monotonic() + seconds)

    return left


def test_no_candidate_is_begun_that_cannot_end_its_first_rung(late):
    ends = [finished(candidate, 2 * candidate + seed, seed=seed) for candidate in (0, 1) for seed in (0, 1)]
    assert late(90)._choose(ends) == (None, False)  # an epoch takes a hundred seconds
    assert late(110)._choose(ends) == (None, True)


def test_no_finalist_is_pushed_out_by_one_whose_seeds_do_not_fit(late):
    ends = [finished(candidate, 2 * candidate + seed, seed=seed) for candidate in (0, 1) for seed in (0, 1)]
    better = [*ends, *(finished(n, n + 4, rung=1, error=n) for n in (2, 3, 4))]
    assert late(700)._choose(better) == (None, False)  # one seed would fit
    assert late(1000)._choose(better[:3] + better[4:]) == (Job(1, 2, 1), False)  # as a repeat that is missing does
    assert late(1600)._choose(better) == (Job(2, 2), False)


def test_a_worker_that_dies_in_a_draw_leaves_no_trial_at_work(tmp_path, monkeypatch):
    search = opened(tmp_path)
    study = Study.open(storage_url(None, search.folder), search.folder.name, SPACE, ("error",), grace=1)
    study.ask(None).finish([50.0], loss=1.0, epochs=1, seconds=1.0)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RungSampler, "sample_relative", interrupted)
        with pytest.raises(KeyboardInterrupt):
            study.ask(None)
    assert [record.state for record in study.records()] == ["done", "running"]
    time.sleep(3)
    assert [record.state for record in study.records()] == ["done"]
    assert study.ask(None).job.rung == 0
