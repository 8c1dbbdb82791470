"""Which fields of a space an error depends on."""

from collections.abc import Mapping
from typing import NamedTuple

from capsella.search.opened import Search
from capsella.search.outcome import Outcome
from capsella.search.schedule import done

FEWEST = 6
"""Candidates."""


class Importances(NamedTuple):
    """Shares that sum to 1, the largest first; of so many candidates at the end of the first rung."""

    shares: Mapping[str, float]
    trials: int


def importances(search: Search, outcome: Outcome) -> Importances | None:
    """FANOVA (Hutter, Hoos, Leyton-Brown 2014) of the error on the first rung; None of too few."""
    import optuna

    from capsella.search.sampler import distributions

    records = done(outcome.records, 0)
    if len(records) < FEWEST or len({record.values[outcome.rules.error] for record in records}) == 1:
        return None
    study = optuna.create_study()
    fields = distributions(search.space)
    for record in records:
        value = record.values[outcome.rules.error]
        point = dict(outcome.points[record.job.candidate])
        study.add_trial(optuna.trial.create_trial(params=point, distributions=fields, value=value))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return Importances(dict(sorted(shares.items(), key=lambda item: -item[1])), len(records))
