"""A tiny league: what it writes, what chooses its rates, and rows that diverge."""

import dataclasses
import json

import pytest

from capsella.cli.main import main
from capsella.errors import CapsellaError
from capsella.papers.league import search, table
from capsella.papers.league.fields import Changed
from capsella.papers.league.table import League
from capsella.training import Recipe, RunFolder
from tests.papers.league.made import DIGITS
from tests.papers.tiny import QUIET

STOPPED = dataclasses.replace(DIGITS, label="digits, stopped", stops=True)


def values_of(folder):
    return json.loads((folder / f"{folder.name}.json").read_text())


@pytest.mark.usefixtures("tiny")
def test_a_tiny_league_from_the_command_line(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "mine"
    words = ["table", "routings", "--data", "digits", "--seeds", "0", "1", "--out", str(folder)]
    main(words)
    out = capsys.readouterr().out
    values = values_of(folder)
    assert {tuple(row["label"]) for row in values["rows"]} == {("digits", "self"), ("digits", "average pooling")}
    for row in values["rows"]:
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        tried = row["validation_errors_by_rate"]
        assert {rate: len(errors) for rate, errors in tried.items()} == dict.fromkeys(("0.001", "0.003"), search.SPLITS)
        assert row["rate"] in map(float, tried)
        assert row["training_images_per_second"] > 0
        assert len(row["changed"]) == 2
        cells = dict(zip(values["heads"], row["cells"], strict=True))
        low, high = row["error"]["interval_95_percent"]
        assert low <= row["error"]["error_percent"] <= high
        assert cells["error, ours %"].startswith(f"{row['error']['error_percent']:.2f} [{low:.1f}, {high:.1f}]")
        assert float(cells["memory MiB"]) > 0 or row["label"][1] == "average pooling"
        assert float(cells["ms an image"]) > 0
        assert cells["attacked, right %"].split()[0] in ("0.0", "50.0", "100.0")  # of two images
        assert cells["gain over even, points"] == "–"  # neither has such a row
        assert cells["rate"].endswith(" (edge)")  # as both of two rates are
        assert (cells["entropy"] == "–") == (row["label"][1] == "average pooling")
        for run in row["runs"]:
            assert Recipe.from_dict(run["recipe"]).optimizer.learning_rate == row["rate"]
    assert out.count("(short)") == 4
    assert values["command"] == "capsella table routings --budget small --seeds 0 1 --data digits"

    monkeypatch.setattr("capsella.grid.run.train", None)  # what is finished is read
    main(words)
    assert values_of(folder) == values


@pytest.mark.usefixtures("tiny")
def test_no_test_image_chooses_a_rate(tmp_path, monkeypatch):
    """Every rate is chosen before the first test, and by validation alone."""
    chosen, tested = [], []
    choose, finish = table.choose_rates, table.result_of

    def chose(rows, grid):
        found = choose(rows, grid)
        assert not tested
        assert not [*tmp_path.rglob("test.json"), *tmp_path.rglob("result.json")]
        for row, one in zip(rows, found, strict=True):
            usual, other = one.tried.values()
            assert one.rate == list(one.tried)[all(a > b for a, b in zip(usual, other, strict=True))]
            assert row.recipe.stop_at_error is None
        chosen.extend(found)
        return found

    def result(*arguments):
        tested.append(arguments)
        return finish(*arguments)

    monkeypatch.setattr(table, "choose_rates", chose)
    monkeypatch.setattr(table, "result_of", result)
    league = League("small", ((DIGITS, "digits"),))
    values = league.run(tmp_path, (0,), "capsella table routings --budget small", QUIET)
    assert len(chosen) == len(tested) == 2
    short = [RunFolder(path.parent).read_config()[1] for path in tmp_path.glob("*split*/config.json")]
    assert len(short) == 2 * 2 * search.SPLITS
    assert {recipe.data.split_seed for recipe in short} == set(range(search.SPLITS))
    assert {recipe.epochs for recipe in short} == {1}
    for row in values["rows"]:
        assert {run["recipe"]["data"]["validation"] for run in row["runs"]} == {search.LEFT_OUT}
        assert {run["recipe"]["epochs"] for run in row["runs"]} == {2}
        assert [run["training"].get("stopped") for run in row["runs"]] == [None]
        assert "not reached" not in dict(zip(values["heads"], row["cells"], strict=True))["error, ours %"]


@pytest.mark.usefixtures("tiny")
def test_networks_that_stop_at_one_error_have_the_recipe_s_rate(tmp_path):
    league = League("small", ((STOPPED, "digits"),))
    values = league.run(tmp_path, (0,), "capsella table routings --budget small", QUIET)
    assert not [*tmp_path.glob("*split*")]
    for row in values["rows"]:
        assert row["rate"] == STOPPED.base("small", "digits").optimizer.learning_rate
        assert row["validation_errors_by_rate"] == {}
        (run,) = row["runs"]
        stop, cells = run["training"]["stopped"], dict(zip(values["heads"], row["cells"], strict=True))
        assert ("not reached" in cells["error, ours %"]) == (not stop["reached"])
        assert cells["rank"] == "–"


@pytest.mark.usefixtures("tiny")
def test_a_row_that_diverges_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "FACTORS", (1.0,))

    def diverge(recipe, *arguments, **options):
        from capsella.training import TrainingDivergedError

        if recipe.model.name == "league_pooling":
            raise TrainingDivergedError("loss: not a number")
        return train(recipe, *arguments, **options)

    from capsella.grid.run import train

    monkeypatch.setattr("capsella.grid.run.train", diverge)
    values = League("small", ((DIGITS, "digits"),)).run(tmp_path, (0,), "c", QUIET)
    assert [row["cells"][3] for row in values["rows"]][1] == "diverged"
    assert values["rows"][0]["cells"][3] != "diverged"
    assert values["rows"][1]["validation_errors_by_rate"] == {"0.001": ["diverged"] * search.SPLITS}


@pytest.mark.usefixtures("tiny")
def test_a_seed_that_diverges_stands_in_the_cell_and_takes_the_rank(tmp_path, monkeypatch):
    from capsella.grid.run import train
    from capsella.training import TrainingDivergedError

    def diverge(recipe, *arguments, **options):
        if recipe.model.name == "league_pooling" and recipe.seed == 1:
            raise TrainingDivergedError("loss: not a number")
        return train(recipe, *arguments, **options)

    def parted(hits):
        assert len(hits) == 1
        return dict.fromkeys(hits, "1")

    monkeypatch.setattr(search, "FACTORS", (1.0,))
    monkeypatch.setattr("capsella.grid.run.train", diverge)
    monkeypatch.setattr(table, "ranks", parted)
    values = League("small", ((DIGITS, "digits"),)).run(tmp_path, (0, 1, 2), "c", QUIET)
    rows = sorted(values["rows"], key=lambda row: row["label"], reverse=True)
    assert [row["diverged_seeds"] for row in rows] == [[], [1]]
    assert [row["cells"][4] for row in rows] == ["1", "–"]
    assert [row["gain_over_even"] for row in rows] == [None, None]
    assert rows[1]["cells"][3].endswith("(1 of 3 seeds diverged)")
    assert "diverged" not in rows[0]["cells"][3]


@pytest.mark.usefixtures("tiny")
def test_images_that_are_missing_show_before_the_first_training(tmp_path, monkeypatch):
    def missing(data):
        raise CapsellaError("the others are not there")

    monkeypatch.setattr("capsella.grid.run.train", None)
    field = dataclasses.replace(DIGITS, changed=Changed("others", missing))
    with pytest.raises(CapsellaError, match="the others are not there"):
        League("small", ((field, "digits"),)).run(tmp_path, (0,), "c", QUIET)
