"""What a search says at its end: its page, its front, and whether the recipe is beaten."""

import dataclasses
import html
import json
import math
import re

import pytest

from capsella.search import work, worker
from capsella.search.candidate import Trained
from capsella.search.outcome import Outcome, gain_intervals
from capsella.search.report import write_report
from capsella.search.schedule import Job, Record, Rules
from tests.search.made import SPACE, opened


def test_the_page_holds_what_it_promises(searched, tmp_path):
    search, outcome = dataclasses.replace(searched[0], folder=tmp_path), searched[1]
    found = {"candidate": outcome.winner.candidate, "test_error_percent": [4.0, 6.0], "trained": 900, "images": 100}
    (tmp_path / "test.json").write_text(json.dumps(found))
    page = write_report(search, outcome).read_text()
    assert outcome.verdict in html.unescape(page)
    for name in ("finalists", "rungs", "importance", "protocol", "cost"):
        assert f'<h2 id="{name}">' in page
    assert page.count("data:image/png;base64,") == 2
    assert "trained on 900 images with 2 seeds and tested once: test error 5.00 ± 1.41 % on 100 images" in page
    assert "No test image was looked at until the winner was chosen." in page
    for run in ("candidate-0000-seed0", "candidate-0077-seed0"):
        (tmp_path / "final" / run).mkdir(parents=True)
        (tmp_path / "final" / run / "result.json").write_text("{}")
    again = write_report(search, outcome).read_text()
    assert "When the search was shorter, the recipe and candidate 77 won, and the same images tested that" in again
    assert "No test image was looked at" not in again
    (tmp_path / "test.json").unlink()
    untested = write_report(search, outcome).read_text()
    assert "The winner is not tested. When the search was shorter, the recipe and candidate 77 won" in untested
    assert "No test image was looked at" not in untested
    assert "fANOVA over 6 candidates at epoch 1" in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert all(path in page for path in SPACE.of)


def test_the_front_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "train_to", lambda recipe, *_: Trained(3000 * recipe.optimizer.learning_rate, 1, 1, 1))
    search = opened(tmp_path, objectives=("error", "parameters"))
    outcome = work(search)
    page = write_report(search, outcome).read_text()
    assert '<h2 id="front-parameters">' in page
    assert "On the front, where none is better in all of error, parameters" in page
    whole = [(one.error, one.costs["parameters"]) for one in outcome.finalists]
    on_front = [(one.error, one.costs["parameters"]) for one in outcome.front]
    assert on_front
    assert all(any(o[0] <= w[0] and o[1] <= w[1] for o in on_front) for w in whole)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            (4.0, 10.0),
            "Errs less than the recipe and is nowhere worse in parameters: candidate 1. With so few seeds this may be "
            "luck.",
        ),
        (
            (5.0, 9.0),
            "Nowhere worse in parameters and somewhere better, with an error that is not told apart from the recipe's: "
            "candidate 1. With so few seeds this may be luck.",
        ),
        ((4.0, 11.0), "None is better than the recipe without being worse in one of error, parameters."),
        ((5.0, 10.0), "None is better than the recipe without being worse in one of error, parameters."),
    ],
)
def test_whether_the_front_beats_the_recipe_is_said(other, text):
    rules, points = Rules((1,), finalists=1, seeds=1), {0: {"a": 1}, 1: {"a": 2}}
    records = [Record(0, Job(0, 0), "done", (5.0, 10.0)), Record(1, Job(1, 0), "done", other)]
    assert Outcome.of(("error", "parameters"), rules, records, points).front_verdict == text
    one = [Record(r.number, r.job, "done", r.values[:1]) for r in records]
    assert Outcome.of(("error",), rules, one, points).front_verdict == ""


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ([(6.0, 6.1, 6.2), (4.0, 4.1, 4.2)], "Candidate 1 beats the recipe on these validation images: "),
        ([(6.0, 5.0, 4.0), (4.0, 3.0, 2.0)], "Candidate 1 is not told apart"),  # 3.04 is half the interval
        ([(9.0, 6.0, 5.0), (1.0, 6.1, 5.1)], "Nothing beats the recipe: "),  # the first seed chose it
        ([(6.0, 6.1), (4.0, 4.1)], "Candidate 1 is ahead of the recipe with the seed that chose it and one more"),
        ([(6.0, 6.0, 6.0), (4.0, 4.0, 4.0)], "Candidate 1 is not told apart"),  # seeds that agree show no spread
    ],
)
def test_an_interval_over_seeds_says_whether_the_recipe_is_beaten(errors, text):
    rules, points = Rules((1,), finalists=1, seeds=3), {0: {"a": 1}, 1: {"a": 2}}
    records = [
        Record(3 * candidate + seed, Job(candidate, 0, seed), "done", (error,))
        for candidate, of in enumerate(errors)
        for seed, error in enumerate(of)
    ]
    assert Outcome.of(("error",), rules, records, points).verdict.startswith(text)
    named = Outcome.of(("error",), rules, records, points, balanced=True).verdict
    assert named.startswith(text.replace("validation error", "balanced validation error"))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ([7.0, 11.0, 11.3], "None is better than the recipe without being worse in one of error, ms."),  # 11.15: worse
        ([7.0, 10.6, 9.4], "Nowhere worse in ms and somewhere better, with an error that is not told apart"),
        ([7.0, 8.0, 8.1], "Errs less than the recipe and is nowhere worse in ms: candidate 1."),
    ],
)
def test_the_seed_that_chose_a_finalist_says_nothing_of_its_front(other, text):
    rules, points = Rules((1,), finalists=1, seeds=3), {0: {"a": 1}, 1: {"a": 2}}
    records = [
        Record(3 * candidate + seed, Job(candidate, 0, seed), "done", (error, 5.0 - candidate))
        for candidate, of in enumerate([[10.0, 10.0, 9.9], other])
        for seed, error in enumerate(of)
    ]
    found = Outcome.of(("error", "ms"), rules, records, points)
    assert found.front_verdict.startswith(text)
    assert found.winner.candidate == int(sum(other[1:]) < 19.9)
    assert "7.0" not in found.verdict


def test_seeds_that_were_given_up_stop_no_verdict():
    """The recipe alone; two common seeds, one of which chose; a candidate with fewer seeds than the recipe."""
    rules = Rules((1,), finalists=2, seeds=4)
    points = {number: {"a": number} for number in range(3)}

    def outcome(*seeds):
        records = [
            Record(9 * candidate + seed, Job(candidate, 0, seed), "done", (5.0 + seed / 8 - candidate, 5.0 - candidate))
            for candidate, of in enumerate(seeds)
            for seed in of
        ]
        return Outcome.of(("error", "ms"), rules, records, points)

    alone = outcome((0, 1, 2))
    assert alone.front_verdict.startswith("None is better")
    assert alone.verdict.startswith("No candidate but the recipe was trained to the end")
    assert "is ahead of the recipe with the seed that chose it and one more" in outcome((0, 2), (0, 2, 3)).verdict
    torn = outcome((0, 1, 2), (0, 1, 3), (0, 1, 2, 3))
    assert torn.verdict.startswith("Candidate 2 beats the recipe")
    assert torn.front_verdict == "Errs less than the recipe and is nowhere worse in ms: candidate 2."


def test_the_best_of_five_must_be_better_by_more():
    """Dunnett's table, two-sided, 5 %: 4.30 of one candidate with 2 degrees of freedom, 3.39 of five with 6."""
    base, other = (5.0, 7.0), (3.0, 5.0)  # each with a variance of 2, so the standard error is √2
    for errors, quantile in (([other], 4.30), ([other] * 5, 3.39)):
        low, high = gain_intervals(errors, base)[0]
        assert (low + high) / 2 == pytest.approx(2.0, abs=0.01)
        assert (high - low) / 2 == pytest.approx(quantile * 2**0.5, rel=0.005)


def test_finalists_are_compared_over_the_seeds_that_they_share():
    """One seed of the recipe was given up: of 6, 9, 5 and 5, 4 the first and the last are compared."""
    rules, points = Rules((1,), finalists=1, seeds=3), {0: {"a": 1}, 1: {"a": 2}}
    errors = {(0, 0): 6.0, (0, 2): 5.0, (1, 0): 5.0, (1, 1): 9.0, (1, 2): 4.0}
    records = [Record(n, Job(c, 0, seed), "done", (error,)) for n, ((c, seed), error) in enumerate(errors.items())]
    found = Outcome.of(("error",), rules, records, points)
    assert [one.errors for one in found.finalists] == [(5.0, 4.0), (6.0, 5.0)]
    third = [Record(9 + seed, Job(2, 0, seed), "done", (3.0 + seed,)) for seed in range(3)]
    of_three = Outcome.of(("error",), Rules((1,), finalists=2, seeds=3), [*records, *third], {**points, 2: {"a": 3}})
    assert [one.errors for one in of_three.finalists] == [(3.0, 4.0, 5.0), (5.0, 9.0, 4.0), (6.0, 5.0)]
    assert "validation error 4.00 ± 1.41 %, the recipe's 5.50 ± 0.71 %" in of_three.verdict


def test_a_recipe_over_the_limits_does_not_win():
    rules, points = Rules((1,), finalists=1, seeds=1), {0: {"a": 1}, 1: {"a": 2}}
    records = [Record(0, Job(0, 0), "done", (2.0, 90.0)), Record(1, Job(1, 0), "done", (4.0, 10.0))]
    free, within = (Outcome.of(("error", "ms"), rules, records, points, over) for over in ("", "90 ms, more than 50"))
    assert (free.winner.candidate, within.winner.candidate) == (0, 1)
    assert [one.candidate for one in within.front] == [1]
    assert within.verdict == (
        "Candidate 1 is behind the recipe with one seed, which may be luck: validation error 4.00 %, the recipe's "
        "2.00 %. The recipe is over a limit: 90 ms, more than 50."
    )
    alone = Outcome.of(("error", "ms"), rules, records[:1], points, "90 ms, more than 50")
    assert alone.winner is None
    assert Outcome.of(("error", "ms"), rules, records[:1], points).verdict == (
        "No candidate but the recipe was trained to the end: validation error 2.00 %."
    )
    assert Outcome.of(("error", "ms"), rules, records[1:], points).verdict == (
        "The recipe was not trained to the end, so nothing is compared with it. The best is candidate 1: validation "
        "error 4.00 %."
    )
    assert alone.verdict.startswith("No candidate was trained to the end yet. The recipe is over a limit")


def test_a_candidate_that_errs_alike_with_all_seeds_brings_no_warning(recwarn):
    found = gain_intervals([[5.0, 5.0], [4.0, 4.5]], [6.0, 6.5])
    assert all(math.isfinite(end) for one in found for end in one)
    assert not recwarn.list
