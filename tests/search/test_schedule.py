"""What a worker does next, from what is done alone."""

import random

import pytest

from capsella.search.front import front, is_better
from capsella.search.schedule import (
    ATTEMPTS,
    Job,
    Record,
    Rules,
    candidates,
    epochs_to_close,
    expected_epochs,
    finalists,
    is_surplus,
    next_job,
    ranked,
    taken,
)

RULES = Rules(rungs=(1, 3, 9), finalists=2, seeds=2)


def record(number, candidate, rung=0, seed=0, error=50.0, state="done", **more):
    return Record(number, Job(candidate, rung, seed), state, (error,) if state == "done" else (), **more)


def test_one_in_three_goes_on():
    there = [record(0, 0, error=90.0), record(1, 1, error=5.0)]
    assert next_job(there[1:], RULES, False) is None
    assert next_job(there, RULES, False) == Job(0, 1)  # the recipe always does
    three = [*there, record(2, 2, error=7.0), record(3, 0, 1, error=80.0, state="running")]
    assert next_job(three, RULES, False) == Job(1, 1)
    assert next_job([*three, record(4, 1, 1, state="running")], RULES, False) is None


def test_later_rungs_come_first():
    records = [record(n, n, error=float(n)) for n in range(3)]
    records += [record(3, 0, 1, error=3.0), record(4, 1, 1, error=1.0), record(5, 2, 1, error=2.0)]
    records += [record(6, 0, 2, error=3.0, state="running")]
    assert next_job(records, RULES, False) == Job(1, 2)


def test_what_is_lost_is_taken_up_and_given_up_at_last():
    lost = [record(number, 1, state="lost") for number in range(1, ATTEMPTS + 1)]
    assert next_job(lost[:-1], RULES, False) == Job(1, 0)
    assert next_job([*lost[:-1], record(9, 1, state="running")], RULES, False) is None
    assert next_job(lost, RULES, False) is None
    assert taken(lost) == {Job(1, 0)}


def test_ctrl_c_does_not_count_against_a_job():
    stopped = [record(number, 1, 2, state="lost", is_interrupted=True) for number in range(1, ATTEMPTS + 5)]
    assert next_job(stopped, RULES, False) == Job(1, 2)
    assert taken(stopped) == set()


def test_who_fails_at_the_end_is_replaced():
    whole = [record(n, n, rung, error=10.0 + n) for n in range(3) for rung in (0, 1)]
    ends = [record(10, 0, 2, error=10.0), record(11, 1, 2, state="refused")]
    one = Rules(rungs=(1, 3, 9), finalists=1, seeds=1)
    assert next_job([*whole, *ends], one, True) == Job(2, 2)
    lost = [record(11 + n, 1, 2, state="lost") for n in range(ATTEMPTS)]
    assert next_job([*whole, ends[0], *lost], one, True) == Job(2, 2)
    assert next_job([*whole, ends[0], record(11, 1, 2, error=9.0)], one, True) is None


def test_who_diverges_with_another_seed_is_replaced_too():
    rules = Rules(rungs=(1, 3, 9), finalists=1, seeds=2)
    whole = [record(n, n, rung, error=10.0 + n) for n in range(3) for rung in (0, 1)]
    ends = [*whole, record(10, 0, 2, error=10.0), record(11, 1, 2, error=9.0), record(12, 0, 2, 1, error=10.0)]
    assert next_job(ends, rules, True) == Job(1, 2, 1)
    ends += [record(13, 1, 2, 1, state="refused")]
    assert finalists(ends, rules) == [0]
    assert next_job(ends, rules, True) == Job(2, 2)


def test_what_the_end_still_takes_is_that_of_the_finalists():
    """Many candidates may reach the last rung; the seeds of the best are still to come."""
    rules = Rules(rungs=(1, 3, 9), finalists=5, seeds=3)
    assert epochs_to_close([], rules) == 6 * 3 * 9
    there = [record(n, n, 2, error=float(n)) for n in range(18)]
    assert epochs_to_close(there, rules) == 6 * 2 * 9
    again = [record(100 + 10 * n + seed, n, 2, seed, error=float(n)) for n in range(6) for seed in (1, 2)]
    assert epochs_to_close([*there, *again], rules) == 0
    assert epochs_to_close([*there, *again[1:]], rules) == 9


def test_what_is_refused_goes_no_further():
    records = [record(n, n, error=9.0) for n in (1, 2)] + [record(3, 3, state="refused")]
    assert next_job(records, RULES, False) is None
    assert candidates(records) == {1, 2}


def test_the_lowest_number_has_the_job():
    first, second = record(4, 1, 1, state="running"), record(5, 1, 1, state="running")
    assert is_surplus([first, second], second, None)
    assert not is_surplus([first, second], first, None)
    assert not is_surplus([record(4, 1, 1, state="lost"), second], second, None)
    new = record(6, 6, state="running")
    assert is_surplus([record(0, 0), record(1, 1), new], new, 2)
    assert not is_surplus([record(0, 0), record(1, 1, state="refused"), new], new, 2)


def test_equal_errors_are_ranked_by_loss():
    records = [record(0, 0, error=5.0, loss=2.0), record(1, 1, error=5.0, loss=1.0), record(2, 2, error=4.0, loss=9.0)]
    assert [one.job.candidate for one in ranked(records, RULES)] == [2, 1, 0]


def test_with_two_objectives_the_front_comes_first():
    values = {0: (5.0, 9.0), 1: (9.0, 1.0), 2: (6.0, 9.5)}
    records = [Record(n, Job(n, 0), "done", value) for n, value in values.items()]
    assert [one.job.candidate for one in ranked(records, RULES)] == [0, 1, 2]


@pytest.mark.parametrize("seed", range(2))
def test_the_front_is_right(seed):
    random.seed(seed)
    points = [(random.randint(0, 6), random.randint(0, 6), random.randint(0, 6)) for _ in range(30)]
    on = set(front(points))
    for n, point in enumerate(points):
        assert (n in on) == (not any(is_better(other, point) for other in points))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("rungs", [(1, 3, 9), (3, 9), (9,)])
def test_any_number_of_workers_that_die_at_any_time_come_to_the_end(seed, workers, rungs):
    """Jobs last for random times, some workers die, and some trainings diverge; in the end nothing is left."""
    random.seed(seed)
    rules, trials, errors, records = Rules(rungs, finalists=2, seeds=2), 9, {}, []
    at_work: list[int] = []
    for _ in range(2000):
        while len(at_work) < workers:
            closing = len(candidates(records)) >= trials
            job = next_job(records, rules, closing)
            if job is None and closing:
                break
            job = job or Job(len(records), 0)
            records.append(record(len(records), *job, state="running"))
            if is_surplus(records, records[-1], trials):
                records[-1] = record(len(records) - 1, *job, state="surplus")
            else:
                at_work.append(len(records) - 1)
        if not at_work:
            break
        number = at_work.pop(random.randrange(len(at_work)))
        job, chance = records[number].job, random.random()
        error = errors.setdefault(job.candidate, random.uniform(1, 90)) + job.seed
        state = "lost" if chance < 0.1 else "refused" if chance < 0.2 and job.candidate else "done"
        records[number] = record(number, *job, error=error, state=state)
    jobs = [one.job for one in records if one.state == "done"]
    assert not at_work
    assert len(jobs) == len(set(jobs))
    assert len(candidates(records)) == trials
    failed = {one.job.candidate for one in records if one.state == "refused" and one.job.rung == rules.top}
    assert not failed & set(finalists(records, rules))
    for candidate in finalists(records, rules):
        assert {Job(candidate, rules.top, seed) for seed in range(rules.seeds)} <= taken(records)


@pytest.mark.parametrize(
    ("rungs", "trials", "most"),
    [((1, 3, 9), 30, 5), ((3, 9), 30, 5), ((9,), 30, 5), ((9,), 12, 1), ((1, 3, 9), 4, 5), ((1, 3, 9), 90, 2)],
)
def test_the_epochs_that_are_expected_are_those_that_it_takes(rungs, trials, most):
    rules, counts = Rules(rungs, finalists=most, seeds=3), []
    for seed in range(8):
        random.seed(seed)
        records, total = [], 0
        while True:
            closing = len(candidates(records)) >= trials
            job = next_job(records, rules, closing)
            if job is None and closing:
                break
            job = job or Job(len(records), 0)
            total += rungs[job.rung] - (rungs[job.rung - 1] if job.rung and not job.seed else 0)
            records.append(record(len(records), *job, error=random.uniform(1, 90)))
        counts.append(total)
    assert expected_epochs(rules, trials) == pytest.approx(sum(counts) / len(counts), rel=0.15)


def test_losses_of_different_scales_are_not_compared():
    """With equal errors, the better of the cross-entropies comes before the worse of the margin losses."""
    scales = [("margin", 0.05), ("margin", 0.06), ("cross_entropy", 0.9), ("cross_entropy", 0.8)]
    records = [record(n, n, error=5.0, loss_of=name, loss=loss) for n, (name, loss) in enumerate(scales)]
    assert [one.job.candidate for one in ranked(records, RULES)] == [0, 3, 1, 2]
