"""What a worker does next: asynchronous successive halving (Li et al. 2020, ASHA), as pure functions of what is done.

A candidate is a point of the space. A job trains one candidate to the end of one rung with one seed. Nothing is kept
beside the list of jobs, so any number of workers decide alike, and a worker may die at any moment.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from capsella.search.front import ranks

FACTOR = 3
"""One in so many goes on to the next rung, which is as many times as long."""
BASE = 0
"""The candidate that is the recipe itself; it goes through all rungs."""
ATTEMPTS = 3
"""A job that so many workers died of is given up."""
State = Literal["waiting", "running", "done", "refused", "lost", "surplus"]


class Job(NamedTuple):
    """One candidate to the end of one rung, both counted from 0; and which of the seeds."""

    candidate: int
    rung: int
    seed: int = 0


def is_first(job: Job) -> bool:
    """Whether a candidate begins with it: of a single rung are the repeats with other seeds, too."""
    return job.rung == job.seed == 0


@dataclass(frozen=True)
class Record:
    """One trial of a study.

    number: in the study. state: waiting for a worker; running; done; refused by a limit or diverged; lost with its
    worker; or surplus, where a trial of a lower number is for the same. values: of the objectives. loss: of the
    validation images, where errors are equal; it compares with those of the same `loss_of`. epochs, seconds: that were
    trained for it. is_interrupted: lost for a reason that is no fault of the job, as Ctrl-C. why: it was refused.
    """

    number: int
    job: Job
    state: State
    values: tuple[float, ...] = ()
    loss: float = 0.0
    loss_of: str = ""
    epochs: int = 0
    seconds: float = 0.0
    is_interrupted: bool = False
    why: str = ""


@dataclass(frozen=True)
class Rules:
    """How a study is to go.

    rungs: epochs at the end of each. finalists, seeds: so many candidates, and the recipe, take all seeds at the end.
    error: which of the values is the error.
    """

    rungs: tuple[int, ...]
    finalists: int
    seeds: int
    error: int = 0

    @property
    def top(self) -> int:
        """The last rung."""
        return len(self.rungs) - 1


def rungs_of(epochs: int, warm_up: float = 0.0) -> tuple[int, ...]:
    """Epochs at the end of each rung: a ninth, a third, and all, of which some may be the same.

    Those that end within the warm-up (epochs) are left out: nothing is known there.

    >>> rungs_of(30), rungs_of(9), rungs_of(2), rungs_of(1)
    ((3, 10, 30), (1, 3, 9), (1, 2), (1,))
    >>> rungs_of(30, warm_up=3.0), rungs_of(30, warm_up=40.0)
    ((10, 30), (30,))
    """
    ends = sorted({max(1, round(epochs / FACTOR**k)) for k in range(3)})
    return tuple(end for end in ends if end > warm_up or end == epochs)


def done(records: Iterable[Record], rung: int, seed: int = 0) -> list[Record]:
    """The finished jobs of a rung, each once."""
    found: dict[Job, Record] = {}
    for record in records:
        if record.state == "done" and record.job.rung == rung and record.job.seed == seed:
            found.setdefault(record.job, record)
    return list(found.values())


def ranked(records: Sequence[Record], rules: Rules) -> list[Record]:
    """The best first: by the front that they are on, then by the error, then by how the loss is among those like it."""
    fronts = ranks([record.values for record in records])
    losses: dict[str, list[float]] = {}
    for record in records:
        losses.setdefault(record.loss_of, []).append(record.loss)

    def standing(record: Record) -> float:
        """The share of the losses of one scale that are less: a margin loss is no number beside a cross-entropy."""
        alike = losses[record.loss_of]
        return sum(loss < record.loss for loss in alike) / len(alike)

    keyed = zip(records, fronts, strict=True)
    best = sorted(keyed, key=lambda pair: (pair[1], pair[0].values[rules.error], standing(pair[0]), pair[0].number))
    return [record for record, _ in best]


def taken(records: Iterable[Record]) -> set[Job]:
    """The jobs that need no more trials: done, at work, or given up."""
    found, died = set(), dict[Job, int]()
    for record in records:
        if record.state == "lost":
            died[record.job] = died.get(record.job, 0) + (not record.is_interrupted)
        elif record.state != "surplus":
            found.add(record.job)
    return found | {job for job, times in died.items() if times >= ATTEMPTS}


def next_job(
    records: Sequence[Record], rules: Rules, is_closing: bool, others: Collection[Job] = frozenset()
) -> Job | None:
    """What is to be done first; None where that is a new candidate or, at the end, nothing.

    What was lost; then promotions, from the last rung but one down; and, when there are no new candidates to come, what
    `finalists` asks for. `others`: jobs that are left to other workers.
    """
    gone = taken(records) | set(others)
    for job in sorted({record.job for record in records if record.state == "lost"} - gone):
        return job
    for rung in reversed(range(rules.top)):
        there = done(records, rung)
        best = ranked(there, rules)[: len(there) // FACTOR]
        for record in [*(one for one in there if one.job.candidate == BASE), *best]:
            job = Job(record.job.candidate, rung + 1)
            if job not in gone:
                return job
    return _closing_job(records, rules, gone) if is_closing else None


def _closing_job(records: Sequence[Record], rules: Rules, gone: set[Job]) -> Job | None:
    """Fill the last rung, then repeat its best."""
    if len(at_the_end(records, rules)) < rules.finalists:
        for rung in reversed(range(rules.top)):
            for record in ranked(done(records, rung), rules):
                job = Job(record.job.candidate, rung + 1)
                if job not in gone:
                    return job
    return next(iter(missing_repeats(records, rules, gone)), None)


def missing_repeats(records: Sequence[Record], rules: Rules, gone: Collection[Job]) -> list[Job]:
    """The finalists' trainings with other seeds: each has its second before any has its third."""
    best = finalists(records, rules)
    repeats = [Job(candidate, rules.top, seed) for seed in range(1, rules.seeds) for candidate in best]
    return [job for job in repeats if job not in gone]


def at_the_end(records: Sequence[Record], rules: Rules) -> set[int]:
    """The candidates, the recipe but for, that were trained to the end or are on their way; none that was given up."""
    ends = [one for one in records if one.job.rung == rules.top and one.state in ("done", "running", "waiting")]
    return {one.job.candidate for one in ends} - {BASE} - _failed(records, rules)


def _failed(records: Iterable[Record], rules: Rules) -> set[int]:
    """The candidates, the recipe but for, that diverged at the end with any seed."""
    return {one.job.candidate for one in records if one.state == "refused" and one.job.rung == rules.top} - {BASE}


def finalists(records: Sequence[Record], rules: Rules) -> list[int]:
    """The recipe, and the best candidates of the last rung; none that diverged there with any seed."""
    failed = _failed(records, rules)
    there = [one for one in done(records, rules.top) if one.job.candidate not in failed]
    others = [record.job.candidate for record in ranked(there, rules) if record.job.candidate != BASE]
    base = [BASE] if any(record.job.candidate == BASE for record in there) else []
    return base + others[: rules.finalists]


def is_surplus(records: Iterable[Record], mine: Record, trials: int | None) -> bool:
    """Whether another trial is for the same job, of a lower number, or a candidate is one too many."""
    records = list(records)
    lower = [record for record in records if record.number < mine.number]
    if any(record.job == mine.job and record.state in ("waiting", "running", "done", "refused") for record in lower):
        return True
    if trials is None or not is_first(mine.job) or mine.job.candidate == BASE:
        return False
    return len(candidates(lower)) >= trials and mine.job.candidate not in candidates(lower)


def candidates(records: Iterable[Record]) -> set[int]:
    """Those that count: not refused."""
    records = list(records)
    refused = {record.job.candidate for record in records if record.state == "refused" and is_first(record.job)}
    return {record.job.candidate for record in records if record.state != "surplus"} - refused


def epochs_to_close(records: Sequence[Record], rules: Rules) -> int:
    """How many epochs the end of the search takes: the last rung's finalists with all their seeds, at most."""
    best, gone = finalists(records, rules), taken(records)
    repeats = sum(Job(one, rules.top, seed) not in gone for one in best for seed in range(1, rules.seeds))
    missing = max(0, rules.finalists + 1 - len(best))
    return (repeats + missing * rules.seeds) * rules.rungs[-1]


def expected_epochs(rules: Rules, trials: int) -> int:
    """How many epochs a search of so many candidates takes in all."""
    before, number, top, total = 0, trials, 0, 0
    for epochs in rules.rungs:
        top = max(number, 1)
        total += top * (epochs - before)
        before, number = epochs, number // FACTOR
    ends = min(rules.finalists + 1, trials)  # the recipe is one of the candidates
    return total + (max(0, ends - top) + ends * (rules.seeds - 1)) * rules.rungs[-1]
