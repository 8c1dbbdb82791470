"""A league of two rows and two rates, on a few digits."""

from functools import partial

import pytest

from capsella.bench.execution import execution_times
from capsella.evaluation import AttackOptions
from capsella.papers.league import fields, measure, search, table
from capsella.papers.league.fields import OTHERS
from capsella.routing import ROUTINGS
from capsella.training import registry
from tests.papers.league.made import DIGITS, tiny_recipe


@pytest.fixture
def tiny(monkeypatch):
    """Two of its rows and two rates, on a few digits."""
    rows = ("self", "average pooling")
    monkeypatch.setitem(registry.RECIPES, "league-tiny", tiny_recipe)
    monkeypatch.setattr(fields, "FIELDS", (DIGITS,))
    monkeypatch.setattr(fields, "ROUTINGS", {name: ROUTINGS[name] for name in rows if name in ROUTINGS})
    monkeypatch.setattr(fields, "OTHERS", {name: OTHERS[name] for name in rows if name in OTHERS})
    monkeypatch.setattr(search, "FACTORS", (1.0, 3.0))
    monkeypatch.setitem(table.ATTACKS, "small", (AttackOptions((0.03,), steps=1, restarts=1), 2))
    monkeypatch.setattr(measure, "MOST_ROUTED", 4)
    monkeypatch.setattr(measure, "execution_times", partial(execution_times, repeats=1, seconds=0.0))
    monkeypatch.setattr("capsella.bench.latency.LEAST_CALLS", 10)
    monkeypatch.setenv("COLUMNS", "200")
