"""`capsella search` as one calls it."""

import json
import re

import pytest

from capsella.search import worker
from capsella.search.candidate import Trained

TINY = ["--per-class", 2, "--data.validation", 0.02, "--test-per-class", 1, "--size", 17, "--batch-size", 20]
QUICK = ["--model", "hinton2018_matrix_capsnet_small", "--trials", 4, "--finalists", 1, "--seeds", 1, "--epochs", 9]


@pytest.fixture
def quick(monkeypatch):
    """No training of candidates: their error is their learning rate."""
    monkeypatch.setattr(worker, "train_to", lambda recipe, *_: Trained(3e3 * recipe.optimizer.learning_rate, 1, 1, 1))


def test_from_a_recipe_to_a_page_and_a_better_recipe(cli, tmp_path, quick):
    out, mine = tmp_path / "study", tmp_path / "mine.json"
    words = ["search", "demo", *TINY, *QUICK, "--tune", "learning_rate", "--out", out, "--save-recipe", mine]
    answer = cli(*words)
    assert answer.code == 0, answer.err
    assert "ahead of the recipe with one seed, which may be luck" in answer.out
    assert re.search(r"Training candidate \d with 1 seed on \d+ images: about", answer.out)
    assert "test error of" in answer.out
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "tested once" in page
    assert "test error of" not in cli(*words, "--no-final").out
    assert (out / "report.html").read_text(encoding="utf-8") == page  # which keeps the test
    again = cli(*words).out
    assert "Training candidate" not in again  # the final run is there
    assert "test error of" in again
    winner = json.loads((out / "outcome.json").read_text())["finalists"][0]
    rate = json.loads(mine.read_text())["recipe"]["optimizer"]["learning_rate"]
    assert rate == winner["point"]["optimizer.learning_rate"]
    trained = cli("train", mine, "--epochs", 1, "--out", tmp_path / "run")
    assert trained.code == 0, trained.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["name"], config["recipe"]["optimizer"]["learning_rate"]) == ("mine", rate)


def test_the_plan_alone(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.cli.search.seconds_an_epoch", lambda *_: 60.0)
    (tmp_path / "space.py").write_text(
        'from capsella.search import Range, Space\nspace = Space({"augment.shift": Range(0, 3)})\n'
    )
    answer = cli("search", "demo", *TINY, "--dry-run", "--space", tmp_path / "space.py", "--out", tmp_path / "study")
    assert answer.code == 0, answer.err
    assert "augment.shift" in answer.out
    assert "30 candidates, up to 12 epochs each; one in three goes on after epoch 1 and 4" in answer.out
    assert "Estimated:" in answer.out
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["demmo"], "did you mean demo"),
        (["demo", "--minutes", "-1"], "minutes: must be above 0"),
        (["demo", "--objectives", "ms"], "objectives: must have error among them"),
        (["demo", "--tune", "colour"], "'colour' must name one field of the space"),
        (["demo", "--space", "gone.py"], "gone.py: no such file"),
        (["demo", "--space", "images-emnt"], "space: must be a Python file or a recipe with a space of its own"),
        (["demo", "--on", "ray", "--devices", "2"], "devices: must be 1, as a worker trains one candidate at a time"),
        (["gone.json"], "gone.json: must be a recipe's JSON file"),
    ],
)
def test_what_is_wrong_is_said(cli, tmp_path, words, text):
    answer = cli("search", *words, "--out", tmp_path / "study")
    assert answer.code != 0
    assert text in answer.err.replace("\n", " ")
