"""What a study keeps on the disk: what a training may still go on from, and the finalists' weights."""

import dataclasses
import random
import shutil

import pytest

from capsella.errors import CapsellaError
from capsella.files import alone_in
from capsella.search import work
from capsella.search.candidate import candidate_folder
from capsella.search.schedule import ATTEMPTS, BASE, Job, Record, candidates, done, finalists, next_job
from capsella.search.tidy import WEIGHTS, at_work, tidy, waiting
from capsella.training import load_run
from tests.search.made import opened
from tests.search.test_schedule import RULES, record


def rung(numbers, rung=0, **more):
    """Candidates of these numbers at the end of a rung, the lowest number the best."""
    return [record(100 * rung + n, n, rung, error=float(n), **more) for n in numbers]


@pytest.mark.parametrize(("trials", "room"), [(None, 4), (9, 4), (12, 5)])
def test_the_better_part_of_a_rung_waits(trials, room):
    there = rung(range(8))
    assert waiting(there, RULES, trials) == {(n, 0) for n in range(room)}
    gone_on = [*there, *rung([0, 1], 1)]
    assert waiting(gone_on, RULES, trials) == {(n, 0) for n in range(room)}  # 0 and 1 now at the second rung
    at_the_end = [*gone_on, *rung([0, 1], 2)]
    assert waiting(at_the_end, RULES, trials) == {(n, 0) for n in range(2, room)}


def test_what_may_fill_the_last_rung_waits_however_few_there_are():
    there = [*rung(range(4)), *rung([0, 1], 1), *rung([0], 2)]  # 0 is the recipe: two finalists are missing
    assert waiting(there, RULES, 3) == {(1, 0), (2, 0)}
    assert waiting([*there, *rung([1], 2)], RULES, 3) == {(2, 0)}
    at_work_on_one = record(300, 1, 2, state="running")  # another process may call the next one up meanwhile
    assert waiting([*there, at_work_on_one], RULES, 3) == {(2, 0), (3, 0)}


def test_refused_and_given_up_ones_do_not_wait_and_lost_ones_are_at_work():
    there = [*rung([0, 1, 2]), record(50, 1, 1, state="refused"), record(51, 2, 1, state="lost")]
    assert (1, 0) not in waiting(there, RULES, None)
    assert at_work(there) == {(2, 0)}
    given_up = [*there, *(record(60 + n, 2, 1, state="lost") for n in range(ATTEMPTS))]
    assert (2, 0) not in waiting(given_up, RULES, None) | at_work(given_up)
    assert at_work([record(0, 0, 2, seed=1, state="running")]) == {(0, 1)}


def trained_anew(seed, trials, known):
    """Of a search of one process with errors by chance: the trainings that go on from what is not there any more."""
    random.seed(seed)
    records: list[Record] = []
    kept, anew = set(), 0
    while True:
        closing = len(candidates(records)) >= trials
        job = next_job(records, RULES, closing)
        if job is None and closing:
            return anew
        job = job or Job(len(records), 0)
        anew += job.rung > 0 and not job.seed and (job.candidate, 0) not in kept
        records.append(record(len(records), *job, error=random.random()))
        kept = (kept | {(job.candidate, job.seed)}) & waiting(records, RULES, trials if known else None)


@pytest.mark.parametrize(("known", "most"), [(True, 1), (False, 10)])
def test_what_goes_is_seldom_needed_again(known, most):
    """Of 20 searches of 30 candidates each; each has some 20 trainings that go on."""
    assert sum(trained_anew(seed, 30, known) for seed in range(20)) <= most


@pytest.fixture
def study(tmp_path):
    """Seven candidates at the first rung, three of them further, one refused; and files for each."""
    records = [*rung(range(7)), *rung([0, 1, 2], 1), *rung([0, 1], 2), record(8, 8, state="refused")]

    def folder_of(job):
        return candidate_folder(tmp_path, job)

    for candidate in (*range(7), 8):
        folder_of(Job(candidate, 0)).mkdir(parents=True)
        for name in ("last.ckpt", "metrics.csv", *WEIGHTS):
            (folder_of(Job(candidate, 0)) / name).write_text(name)
    return folder_of, records


def holding(study, name):
    return [n for n in (*range(7), 8) if (study[0](Job(n, 0)) / name).exists()]


def test_files_that_nobody_needs_are_removed(study):
    folder_of, records = study
    assert tidy(folder_of, lambda: records, RULES, None) == 2 + 4 * 3
    assert holding(study, "last.ckpt") == [2, 3]
    assert holding(study, "model.safetensors") == [0, 1, 2, 3]
    assert holding(study, "metrics.csv") == [*range(7), 8]
    assert tidy(folder_of, lambda: records, RULES, None) == 0
    tidy(folder_of, lambda: records, RULES, None, is_over=True)
    assert holding(study, "last.ckpt") == []
    assert holding(study, "model.safetensors") == finalists(records, RULES) == [0, 1]


def test_who_may_become_a_finalist_keeps_its_weights_until_the_end(study):
    folder_of, records = study
    rules = dataclasses.replace(RULES, finalists=1)
    records = [*records, record(90, 2, 2, error=2.0)]
    tidy(folder_of, lambda: records, rules, None)
    assert finalists(records, rules) == [0, 1]
    assert holding(study, "model.safetensors") == [0, 1, 2, 3]
    diverged = [*records, record(91, 1, 2, seed=1, state="refused")]
    tidy(folder_of, lambda: diverged, rules, None, is_over=True)
    assert finalists(diverged, rules) == holding(study, "model.safetensors") == [0, 2]


def test_nothing_is_removed_where_somebody_trains(study):
    folder_of, records = study
    with alone_in(folder_of(Job(6, 0))):
        tidy(folder_of, lambda: records, RULES, None)
    assert holding(study, "last.ckpt") == [2, 3, 6]


def test_a_job_that_is_taken_meanwhile_keeps_its_checkpoint(study):
    folder_of, records = study
    taken_at_last = [*records, record(99, 6, 1, state="running")]
    reads = iter([records])
    tidy(folder_of, lambda: next(reads, taken_at_last), RULES, None)
    assert holding(study, "last.ckpt") == [2, 3, 6]


def test_a_finished_study_holds_the_finalists_weights_alone(searched, tmp_path):
    search, outcome = searched
    tmp_path = shutil.copytree(search.folder, tmp_path / search.folder.name)
    assert not list(tmp_path.rglob("last.ckpt"))
    ends = {one.candidate for one in outcome.finalists}
    assert {int(path.parent.name[:4]) for path in tmp_path.rglob("model.safetensors")} == ends
    assert load_run(candidate_folder(tmp_path, Job(BASE, 2))).name == "tiny-0"
    dropped = next(r.job for r in done(outcome.records, 0) if r.job.candidate not in ends)
    with pytest.raises(CapsellaError, match=r"model\.safetensors"):
        load_run(candidate_folder(tmp_path, dropped))
    more = work(opened(tmp_path, trials=10))
    assert len(done(more.records, 0)) == 10
    assert len({one.candidate for one in more.finalists}) == 3
