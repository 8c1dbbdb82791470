"""Where the next candidate lies: TPE on the highest rung that says enough (BOHB, Falkner, Klein, Hutter 2018)."""

import contextlib
import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from capsella.search.schedule import Record, is_first
from capsella.search.space import Choice, Range, Space

STARTUP = 10
"""So many candidates are drawn at random first."""
MOST_LISTED = 1000
"""Points of a space that are listed, to find those that no candidate has; of a larger one so many are drawn."""


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """A space as Optuna has it."""
    return {path: _distribution(values) for path, values in space.of.items()}


def _distribution(values: Range | Choice) -> BaseDistribution:
    if isinstance(values, Choice):
        return optuna.distributions.CategoricalDistribution(values.labels)
    if values.whole:
        return optuna.distributions.IntDistribution(int(values.low), int(values.high), log=values.log)
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.log)


@dataclass
class RungSampler(BaseSampler):
    """Optuna's TPE, for one objective or several, shown the trials of one rung: the highest that has enough.

    TPE for several objectives is its multi-objective form (Ozaki et al. 2022), which needs tens of trials where a
    genetic algorithm needs generations. Each trial draws with a seed of its own, so that workers do not draw the same.

    space: to draw from. seed: of the search. records: of a study's trials, as the schedule sees them.
    """

    space: Space
    seed: int
    records: Callable[[Sequence[FrozenTrial]], list[Record]]

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """A sign of life before the draw: a worker that dies in it must count as dead, too."""
        with contextlib.suppress(optuna.exceptions.StorageInternalError):  # busy: the next one will do
            study._storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All of it: every candidate has every field."""
        return distributions(self.space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A point for a new candidate; a trial whose point is fixed has no use of it."""
        if "fixed_params" in trial.system_attrs:
            return {}
        shown = optuna.create_study(
            directions=study.directions, sampler=TPESampler(n_startup_trials=STARTUP, seed=self._seed(study, trial))
        )
        shown.add_trials(self._shown(study, search_space, trial))
        drawn: dict[str, Any] = shown.ask(search_space).params
        others = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        known = [one.params for one in others if not one.user_attrs.get("surplus")]
        return self._new(known, self._seed(study, trial)) or drawn if drawn in known else drawn

    def _new(self, known: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any] | None:
        """A point at random that no candidate has, where TPE likes one again; None where there is none."""
        draw = random.Random(seed)
        every = {path: values for path, one in self.space.of.items() if (values := one.every()) is not None}
        if len(every) < len(self.space.of):
            return None  # as good as never the same
        points: Iterable[dict[str, Any]]
        if math.prod(map(len, every.values())) > MOST_LISTED:
            points = ({path: draw.choice(values) for path, values in every.items()} for _ in range(MOST_LISTED))
        else:
            points = [dict(zip(every, values, strict=True)) for values in itertools.product(*every.values())]
            draw.shuffle(points)
        return next((point for point in points if point not in known), None)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """At random; only for a trial whose fixed point lacks a field."""
        return RandomSampler(self._seed(study, trial)).sample_independent(study, trial, param_name, param_distribution)

    def _seed(self, study: Study, trial: FrozenTrial) -> int:
        """By how many candidates were drawn before, so that a trial that is taken up again changes no later draw."""
        before = [one for one in study.get_trials(deepcopy=False) if one.number < trial.number]
        drawn = sum(one.user_attrs.get("candidate", one.number) == one.number for one in before)
        return (self.seed * 100_003 + drawn) % 2**32

    def _shown(self, study: Study, space: dict[str, BaseDistribution], mine: FrozenTrial) -> list[FrozenTrial]:
        """The rung's finished trials, what is still at work, and what was refused, as beyond a constraint.

        TPE would else return to the widths that limits refuse: it has seen few trials there, and likes what is new.
        """
        trials = [one for one in study.get_trials(deepcopy=False) if one.number != mine.number]
        trials = [one for one in trials if one.params.keys() == space.keys()]
        by_number = {one.number: one for one in trials}
        records, enough = self.records(trials), max(STARTUP, len(space) + 2)
        rungs = sorted({record.job.rung for record in records}, reverse=True)
        finished: list[Record] = []
        for rung in rungs:
            finished = [r for r in records if r.state == "done" and r.job.rung == rung and r.job.seed == 0]
            if len(finished) >= enough:
                break
        shown = [_told(by_number[record.number], record.values) for record in finished]
        shown += [_refused(one) for one in trials if "excess" in one.user_attrs]
        begun = [by_number[r.number] for r in records if r.state == "running" and is_first(r.job)]
        return shown + [_running(one) for one in begun]


def _told(trial: FrozenTrial, values: Sequence[float]) -> FrozenTrial:
    return optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, values=list(values))


def _refused(trial: FrozenTrial) -> FrozenTrial:
    shown = optuna.trial.create_trial(state=TrialState.PRUNED, params=trial.params, distributions=trial.distributions)
    shown.set_constraint("excess", trial.user_attrs["excess"])
    return shown


def _running(trial: FrozenTrial) -> FrozenTrial:
    return optuna.trial.create_trial(state=TrialState.RUNNING, params=trial.params, distributions=trial.distributions)


def directions(objectives: Sequence[str]) -> list[StudyDirection]:
    """All are to be small."""
    return [StudyDirection.MINIMIZE] * len(objectives)


def hush() -> None:
    """No log lines of Optuna, and no warnings of what is meant: heartbeats without its own loop, choices as texts."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", module="optuna")
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    warnings.filterwarnings("ignore", message="Heartbeat of storage")
