"""`capsella search` as one calls it."""

import json

import pytest

TINY = ["--per-class", 2, "--validation", 0.02, "--test-per-class", 1, "--size", 17, "--batch-size", 20]
QUICK = ["--model", "he2016_resnet10", "--trials", 2, "--finalists", 1, "--seeds", 1, "--epochs", 2]


def test_from_a_recipe_to_a_page_and_a_better_recipe(cli, tmp_path):
    out = tmp_path / "study"
    words, mine = ["search", "demo", *TINY, *QUICK, "--tune", "learning_rate", "--out", out], out / "winner.json"
    answer = cli(*words, "--no-final")
    assert answer.code == 0, answer.err
    assert not list(out.rglob("result.json"))
    again = cli(*words)
    assert again.code == 0
    assert "Test error" in again.out
    assert len(list(out.rglob("result.json"))) == 1
    assert (out / "report.html").exists()
    winner = json.loads((out / "outcome.json").read_text())["finalists"][0]
    rate = json.loads(mine.read_text())["recipe"]["optimizer"]["learning_rate"]
    assert rate == winner["point"]["optimizer.learning_rate"]
    trained = cli("train", mine, "--epochs", 1, "--out", tmp_path / "run")
    assert trained.code == 0, trained.err


def test_the_plan_alone(cli, tmp_path):
    (tmp_path / "space.py").write_text(
        "from optuna.distributions import IntDistribution\nfrom capsella.experiments.search import Space\n"
        "space = Space({'augment.shift': IntDistribution(0, 3)})\n"
    )
    words = [*TINY, "--model", "he2016_resnet10", "--space", tmp_path / "space.py", "--out", tmp_path / "study"]
    answer = cli("search", "demo", *words, "--dry-run")
    assert answer.code == 0, answer.err
    assert "augment.shift" in answer.out
    assert "until" in answer.out  # the time of day at which it will end
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["demmo"], "did you mean demo"),
        (["demo", "--minutes", "-1"], "minutes: "),
        (["demo", "--tune", "colour"], "'colour'"),
        (["gone.json"], "gone.json"),
    ],
)
def test_what_is_wrong_is_said(cli, tmp_path, words, text):
    answer = cli("search", *words, "--out", tmp_path / "study")
    assert answer.code != 0
    assert text in answer.err.replace("\n", " ")
