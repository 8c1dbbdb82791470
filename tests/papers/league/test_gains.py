"""What routing gains over even couplings and over the CNN, in a tiny league."""

import dataclasses

import numpy as np
import pytest

from capsella.grid import hits_of
from capsella.papers.league import fields, search, table
from capsella.papers.league.table import League
from capsella.routing import ROUTINGS
from tests.papers.league.made import DIGITS
from tests.papers.tiny import QUIET

STOPPED = dataclasses.replace(DIGITS, label="digits, stopped", stops=True)

NAMES = ("heinsen", "heinsen, even", "CNN")


@pytest.mark.usefixtures("tiny")
def test_what_routing_gains_over_even_couplings(tmp_path, monkeypatch):
    """Hits image by image, of the row and of its twin; more than 0 where routing errs less."""
    monkeypatch.setattr(fields, "ROUTINGS", {"heinsen": ROUTINGS["heinsen"]})
    monkeypatch.setattr(fields, "OTHERS", {})
    monkeypatch.setattr(search, "FACTORS", (1.0,))
    values = League("small", ((DIGITS, "digits"),)).run(tmp_path, (0, 1), "c", QUIET)
    routed, even = sorted(values["rows"], key=lambda row: row["label"][1])
    assert [row["label"][1] for row in (routed, even)] == ["heinsen", "heinsen, even"]
    errors = [row["error"]["error_percent"] for row in values["rows"]]
    assert errors == sorted(errors)
    hits = [np.stack([hits_of(run["test"]) for run in row["runs"]]).mean(0) for row in (routed, even)]
    assert routed["gain_over_even"]["points"] == pytest.approx(100 * (hits[0] - hits[1]).mean())
    low, high = routed["gain_over_even"]["interval_95_points"]
    assert low <= routed["gain_over_even"]["points"] <= high
    assert even["gain_over_even"] is None
    cells = dict(zip(values["heads"], routed["cells"], strict=True))
    assert cells["gain over even, points"] == f"{routed['gain_over_even']['points']:.2f} [{low:.1f}, {high:.1f}]"
    assert dict(zip(values["heads"], even["cells"], strict=True))["entropy"] == "1.000, 1.000"
    assert routed["gain_over_even"]["detectable_points"] > 0


@pytest.mark.usefixtures("tiny")
def test_gains_over_even_couplings_are_at_the_rate_of_the_row(tmp_path, monkeypatch):
    """The even row stands in the table at the rate that it chose; the gain is over that network at the routed row's."""
    monkeypatch.setattr(fields, "ROUTINGS", {"heinsen": ROUTINGS["heinsen"]})
    monkeypatch.setattr(fields, "OTHERS", {})

    def chosen(rows, grid):
        rates = {row.slug: search.rate_at(row.recipe, 1.0 if row.even else 3.0) for row in rows}
        return [search.Chosen({}, rates[row.slug], search.whole(row, rates[row.slug])) for row in rows]

    monkeypatch.setattr(table, "choose_rates", chosen)
    values = League("small", ((DIGITS, "digits"),)).run(tmp_path, (0, 1), "c", QUIET)
    routed, even = sorted(values["rows"], key=lambda row: row["label"][1])
    assert {run["recipe"]["optimizer"]["learning_rate"] for run in routed["even_runs"]} == {routed["rate"]}
    assert {run["recipe"]["optimizer"]["learning_rate"] for run in even["runs"]} == {3 * routed["rate"]}
    assert [run["recipe"]["model"] for run in routed["even_runs"]] == [run["recipe"]["model"] for run in even["runs"]]
    own, its = (np.stack([hits_of(run["test"]) for run in routed[key]]).mean(0) for key in ("runs", "even_runs"))
    assert routed["gain_over_even"]["points"] == pytest.approx(100 * (own - its).mean())


@pytest.mark.parametrize(("error", "reached"), [(99.0, True), (0.0, False)])
@pytest.mark.usefixtures("tiny")
def test_networks_that_stop_at_one_error_gain_on_changed_images(tmp_path, monkeypatch, error, reached):
    monkeypatch.setattr(fields, "ROUTINGS", {"heinsen": ROUTINGS["heinsen"]})
    monkeypatch.setattr(fields, "OTHERS", {"CNN": "league_cnn"})
    monkeypatch.setitem(fields.STOPS, "small", error)
    rows = League("small", ((STOPPED, "digits"),)).run(tmp_path, (0, 1), "c", QUIET)["rows"]
    routed, even, cnn = (next(row for row in rows if row["label"][1] == name) for name in NAMES)
    if not reached:
        assert [row[gain] for row in rows for gain in ("gain_over_even", "gain_over_cnn")] == [None] * 6
        return
    errors = [row["changed_error"]["error_percent"] for row in rows]
    assert errors == sorted(errors)
    hits = [np.stack([hits_of(test) for test in row["changed"]]).mean(0) for row in (routed, even, cnn)]
    assert routed["gain_over_even"]["points"] == pytest.approx(100 * (hits[0] - hits[1]).mean())
    assert routed["gain_over_cnn"]["points"] == pytest.approx(100 * (hits[0] - hits[2]).mean())
    assert even["gain_over_cnn"]["points"] == pytest.approx(100 * (hits[1] - hits[2]).mean())
    assert even["gain_over_even"] is None
    assert cnn["gain_over_cnn"] is None
