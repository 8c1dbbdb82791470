"""A worker: one process that takes jobs from a study until there are none, or its time is up."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from capsella.errors import CapsellaError, NoMemoryError, memory_errors, pluralize
from capsella.files import is_disk_full
from capsella.grid import duration
from capsella.search.candidate import Trained, candidate_folder, train_to, with_seed
from capsella.search.cost import Costs, TooCostlyError
from capsella.search.opened import Search
from capsella.search.schedule import (
    ATTEMPTS,
    BASE,
    Job,
    Record,
    at_the_end,
    candidates,
    done,
    epochs_to_close,
    expected_epochs,
    is_first,
    is_surplus,
    missing_repeats,
    next_job,
    ranked,
    taken,
)
from capsella.search.study import FAR, Claim, loss_of
from capsella.search.tidy import tidy
from capsella.training import TrainingDivergedError

POLL = 2.0
"""Seconds between looks at a study in which others are at work and nothing is to be done."""
MOST_FOR_THE_END = 0.5
"""Of the time: the rest is for new candidates and their promotions, however slow the machine turns out to be."""
MOST_REFUSED = 50
"""So many candidates refused for each that may be trained: then nothing will keep within the limits."""
MOST_REPEATED = 20
"""So many draws in turn that were drawn before: then the space has no more."""


@dataclass
class Worker:
    """Works at one search.

    say: called with a line for every job. begin: called with what is begun. deadline: by `time.monotonic`.
    """

    search: Search
    costs: Costs
    say: Callable[[str], object]
    begin: Callable[[str], object]
    deadline: float | None = None
    jobs: int = field(default=0, init=False)
    _has_told: bool = field(default=False, init=False)
    _repeated: int = field(default=0, init=False)
    _too_large: set[Job] = field(default_factory=set, init=False)

    def run(self) -> list[Record]:
        """Work until nothing is left, or the time is up; returns the study's trials.

        Raises:
            CapsellaError: a training cannot go on, for a reason that is not the candidate's.
        """
        while True:
            records = self.search.study.records()
            job, is_new = self._choose(records)
            if job is None and not is_new:
                at_work = ("running",) if self._out_of_time() else ("waiting", "running")
                busy = sum(record.state in at_work for record in records)
                if not busy:
                    self._tidy(is_over=next_job(records, self.search.rules, is_closing=True) is None)
                    return records
                self.begin(f"waiting for {pluralize(busy, 'training')} of other processes")
                time.sleep(POLL)
                continue
            self._work(self.search.study.ask(job))
            self._tidy()

    def _tidy(self, is_over: bool = False) -> None:
        folder_of = partial(candidate_folder, self.search.folder)
        tidy(folder_of, self.search.study.records, self.search.rules, self.search.options.all_trials, is_over)

    def _choose(self, records: Sequence[Record]) -> tuple[Job | None, bool]:
        """The next job, or that a new candidate is due; neither where there is nothing to do."""
        if self._out_of_time():
            return None, False
        if any(record.state == "waiting" for record in records):
            return None, True  # which asking takes first
        self._check_refused(records)
        closing = not self._has_room(records)
        job = next_job(records, self.search.rules, closing, self._too_large)
        if job is not None and self._takes_too_long(job, records):
            repeats = missing_repeats(records, self.search.rules, taken(records) | self._too_large)
            return next((one for one in repeats if not self._takes_too_long(one, records)), None), False
        return job, job is None and not closing

    def _has_room(self, records: Sequence[Record]) -> bool:
        """Whether there are to be new candidates: by their number, and by the time that the end of the search takes."""
        trials = self.search.options.all_trials
        is_full = trials is not None and len(candidates(records)) >= trials
        if is_full or self._repeated >= MOST_REPEATED:
            return False
        left = self._seconds_left()
        if left is None or self.search.options.minutes is None:
            return True
        if self._takes_too_long(Job(len(records), 0), records):  # a new one
            return False
        closing = epochs_to_close(records, self.search.rules) * seconds_an_epoch(records)
        return min(closing, MOST_FOR_THE_END * 60 * self.search.options.minutes) < left

    def _takes_too_long(self, job: Job, records: Sequence[Record]) -> bool:
        left, rules = self._seconds_left(), self.search.rules
        before = rules.rungs[job.rung - 1] if job.rung and not job.seed else 0
        epochs = rules.rungs[job.rung] - before
        if job.rung == rules.top and not job.seed and len(at_the_end(records, rules)) >= rules.finalists:
            epochs += (rules.seeds - 1) * rules.rungs[-1]  # else it pushes out one that has all its seeds
        return left is not None and epochs * seconds_an_epoch(records) > left

    def _work(self, claim: Claim) -> None:
        """One job, and what came of it."""
        mine = Record(claim.number, claim.job, "running")
        if is_surplus(self.search.study.records(), mine, self.search.options.all_trials):
            claim.leave()
            return
        if is_first(claim.job) and self.search.study.is_repeated(claim):
            claim.leave()
            self._repeated += 1
            if self._repeated == MOST_REPEATED:
                self.say("the space has no more points: the last draws were all drawn before")
            return
        if is_first(claim.job):
            self._repeated = 0
        rung = self.search.rules.rungs[claim.job.rung]
        seed = f", seed {claim.job.seed}" if claim.job.seed else ""
        self.begin(f"candidate {claim.job.candidate}{seed}: to epoch {rung}")
        try:
            with claim.alive(), memory_errors(f"candidate {claim.job.candidate}"):
                self._train(claim)
        except NoMemoryError:  # another machine may have more of it
            claim.lose(is_interrupted=False)
            self._too_large.add(claim.job)
            self.say(
                f"candidate {claim.job.candidate}: not enough memory here, so it is left to other processes, or to a "
                f"later call; it is tried {ATTEMPTS} times in all"
            )
        except (TooCostlyError, TrainingDivergedError, ValueError) as error:
            why = error.what if isinstance(error, TrainingDivergedError) else f"{error or type(error).__name__}"
            claim.refuse(why, *((error.excess, error.cost) if isinstance(error, TooCostlyError) else (FAR, {})))
            self.say(f"candidate {claim.job.candidate} refused: {why}")
        except BaseException as error:
            claim.lose(is_interrupted=isinstance(error, KeyboardInterrupt) or is_disk_full(error))
            raise
        self.jobs += 1

    def _train(self, claim: Claim) -> None:
        search, job = self.search, claim.job
        recipe = with_seed(search.space.recipe_at(search.trained, claim.point), job.seed)
        stopwatch = self.costs.stopwatch
        stopwatch.best = min(stopwatch.best, search.study.yardstick)
        cost = self.costs.of(recipe, search.study.cost_of(claim.point), is_free=job.candidate == BASE)
        claim.keep(cost)  # so that others do not time the same network
        if math.isfinite(stopwatch.best):
            claim.keep({"yardstick": stopwatch.best})
        folder, epochs = candidate_folder(search.folder, job), search.rules.rungs[job.rung]
        trained = train_to(recipe, folder, epochs, search.images, search.machine, f"{search.name}-{job.candidate}")
        numbers = {"error": trained.error, **cost}
        values = [numbers[objective] for objective in search.options.objectives]
        facts = {
            "loss": trained.loss,
            "loss_of": loss_of(claim.point),
            "epochs": trained.epochs,
            "seconds": trained.seconds,
            **numbers,
        }
        claim.finish(values, **facts)
        self._tell(job, trained)

    def _tell(self, job: Job, trained: Trained) -> None:
        """A line for this job: what it came to, the best so far, the candidates so far, and the time left."""
        records, rungs, trials = self.search.study.records(), self.search.rules.rungs, self.search.options.all_trials
        last = max((record.job.rung for record in records if record.state == "done"), default=0)
        best = next(iter(ranked(done(records, last), self.search.rules)), None)
        if best is None:  # this worker was taken for dead meanwhile, and nothing else is done
            return
        left = self.estimate(records)
        begun = len(candidates(records))
        cells = (
            f"{job.candidate}{f', seed {job.seed}' if job.seed else ''}",
            f"{rungs[job.rung]}/{rungs[-1]}",
            f"{trained.error:.2f}",
            f"{best.values[self.search.rules.error]:.2f} by {best.job.candidate}, epoch {rungs[last]}",
            f"{begun}" if trials is None else f"{begun}/{trials}",
            "" if left is None else duration(left),
        )
        if not self._has_told:
            self.say(_line("candidate", "epoch", "error %", "best so far", "begun", "time left"))
            self._has_told = True
        self.say(_line(*cells))

    def estimate(self, records: Sequence[Record]) -> float | None:
        """Seconds until the search is over, with the workers of now; None where nothing is known."""
        trials, deadline = self.search.options.all_trials, self._seconds_left()
        if trials is None:
            return deadline
        spent = sum(record.epochs for record in records)
        workers = 1 + sum(record.state == "running" for record in records)  # this one's trial has just ended
        left = max(0, expected_epochs(self.search.rules, trials) - spent) * seconds_an_epoch(records) / workers
        return left if deadline is None else min(left, deadline)

    def _seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _check_refused(self, records: Sequence[Record]) -> None:
        refused = [record for record in records if record.state == "refused" and is_first(record.job)]
        if len(refused) >= MOST_REFUSED * max(1, len(candidates(records))):
            raise CapsellaError(
                f"{len(refused)} candidates were refused, and {len(candidates(records))} trained: too little of the "
                f"space can be trained within the limits; the last was refused: {refused[-1].why}"
            )


def _line(candidate: str, epoch: str, error: str, best: str, begun: str, left: str) -> str:
    return f"{candidate:<12} {epoch:>7} {error:>8}   {best:<24} {begun:>6}   {left}".rstrip()


def seconds_an_epoch(records: Sequence[Record]) -> float:
    """In the mean over what was trained; 0 where nothing was."""
    epochs = sum(record.epochs for record in records)
    return sum(record.seconds for record in records) / epochs if epochs else 0.0
