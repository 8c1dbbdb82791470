"""What a search concludes from its trials and finalists."""

import math
from types import SimpleNamespace

import pytest

from capsella.experiments.search import SearchOptions
from capsella.experiments.search.outcome import gain_intervals, outcome_of
from capsella.experiments.search.report import verdict


def outcome(*seeds, costs=None, **options):
    """Candidates with these validation errors by seed, candidate 0 the recipe."""
    trials = [
        SimpleNamespace(
            number=n,
            params={"a": n},
            values=[errors[0]],
            state=SimpleNamespace(name="COMPLETE"),
            user_attrs={"candidate": n, **({} if costs is None else {"ms": costs[n]})},
        )
        for n, errors in enumerate(seeds)
    ]
    given = SearchOptions(finalists=options.pop("finalists", 5), **options)
    return outcome_of(trials, lambda n: dict(enumerate(seeds[n][1:], 1)), given)


@pytest.mark.parametrize(
    ("errors", "winner", "comparison"),
    [
        ([(6.0, 6.1, 6.2), (4.0, 4.1, 4.2)], 1, "better"),
        ([(6.0, 5.0, 4.0), (4.0, 3.0, 2.0)], 1, "unclear"),  # 3.04 is half the interval
        ([(9.0, 6.0, 5.0), (1.0, 6.1, 5.1)], 0, None),  # the first seed chose it
        ([(6.0, 6.1), (4.0, 4.1)], 1, "one seed"),
        ([(6.0, 6.0, 6.0), (4.0, 4.0, 4.0)], 1, "unclear"),  # seeds that agree show no spread
    ],
)
def test_an_interval_over_seeds_decides_whether_the_recipe_is_beaten(errors, winner, comparison):
    found = outcome(*errors)
    assert (found.winner.candidate, found.comparison) == (winner, comparison)


def test_a_finalist_that_diverges_makes_room_for_the_next():
    found = outcome((5.0, 5.0), (3.0, math.inf), (4.0, 4.1), (4.5, 4.5), finalists=1)
    assert {finalist.candidate for finalist in found.finalists} == {0, 2}


def test_a_recipe_over_the_limits_does_not_win():
    found = outcome((2.0,), (4.0,), costs=(90.0, 10.0), limit_ms=50.0)
    assert found.winner.candidate == 1
    assert found.base_excess == {"ms": pytest.approx(0.8)}
    assert outcome((2.0,), costs=(90.0,), limit_ms=50.0).winner is None


def test_the_best_of_five_must_be_better_by_more():
    """Dunnett's table, two-sided, 5 %: 4.30 of one candidate with 2 degrees of freedom, 3.39 of five with 6."""
    base, other = (5.0, 7.0), (3.0, 5.0)  # each with a variance of 2, so the standard error is √2
    for errors, quantile in (([other], 4.30), ([other] * 5, 3.39)):
        low, high = gain_intervals(errors, base)[0]
        assert (low + high) / 2 == pytest.approx(2.0, abs=0.01)
        assert (high - low) / 2 == pytest.approx(quantile * 2**0.5, rel=0.005)


def test_the_words(golden):
    cases = {
        "nothing": outcome(),
        "only the recipe": outcome((5.0,)),
        "better": outcome((6.0, 6.1, 6.2), (4.0, 4.1, 4.2)),
        "unclear": outcome((6.0, 5.0, 4.0), (4.0, 3.0, 2.0)),
        "not beaten": outcome((3.0, 3.0, 3.1), (4.0, 4.1, 4.2)),
        "one seed": outcome((6.0,), (4.0,)),
        "over a limit": outcome((2.0,), (4.0,), costs=(90.0, 10.0), limit_ms=50.0),
    }
    texts = [f"# {name}\n{verdict(case)}\n" for name, case in cases.items()]
    golden("outcome.txt", "\n".join(texts))
