"""Rows × seeds × rates on a few of scikit-learn's digits: order, resumption, and what is refused."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from capsella.errors import CapsellaError
from capsella.grid import Clock, Grid, Row, check_none_diverged, each, of_common_seeds, rate_at
from capsella.grid import grid as grids
from capsella.training import Machine, TrainingDivergedError
from tests.papers.tiny import CAPSNET, CNN, QUIET


def row(slug, recipe=CAPSNET):
    return Row(slug=slug, recipe_name="demo", recipe=recipe)


@pytest.fixture
def trained(monkeypatch):
    """No training: an error of 100 times the distance of the rate from 2e-3; rates of 0.1 and more diverge."""
    calls = []

    def fake(recipe, folder, name, console, machine):
        rate = recipe.optimizer.learning_rate
        calls.append(folder.name)
        if rate >= 0.1:
            raise TrainingDivergedError("the loss is nan")
        folder.mkdir(parents=True)
        best = {"validation_error": 100 * abs(rate - 2e-3), "validation_loss": 1.0, "epoch": 1}
        (folder / "summary.json").write_text(json.dumps({"best": best, "seconds": 4.0}))

    monkeypatch.setattr(grids, "trained_run", fake)
    return calls


def test_seeds_go_round_the_rows_and_what_is_finished_is_read(tmp_path, monkeypatch):
    text = io.StringIO()
    rows = [row("caps"), row("cnn", CNN)]
    results = Grid(tmp_path, Console(file=text, width=200)).results(rows, [0, 3])
    lines = [line for line in text.getvalue().splitlines() if line.startswith("run ")]
    assert [line.partition(";")[0] for line in lines] == [
        f"run {number} of 4: {slug}, seed {seed}"
        for number, (slug, seed) in enumerate([("caps", 0), ("cnn", 0), ("caps", 3), ("cnn", 3)], 1)
    ]
    assert all("about" in line for line in lines[1:])
    assert {slug: [one["seed"] for one in found] for slug, found in results.items()} == {"caps": [0, 3], "cnn": [0, 3]}
    assert not list(tmp_path.glob("*/last.ckpt"))  # nothing is left to resume
    monkeypatch.setattr(grids, "result_of", lambda recipe, folder, *_: json.loads((folder / "result.json").read_text()))
    silent = io.StringIO()
    assert Grid(tmp_path, Console(file=silent)).results(rows, [0, 3]) == results
    assert silent.getvalue() == ""


def test_the_best_rate_of_the_first_seed_takes_the_others(tmp_path, trained):
    (found,) = Grid(tmp_path, QUIET).search([row("net")], [5, 6], (1 / 3, 1.0, 3.0))
    assert list(found.tried) == [3.3e-4, 1e-3, 3e-3]
    assert found.rate == 1e-3  # as far from 2e-3 as 3e-3 is: the first of equals
    assert {seed: run.folder.name for seed, run in found.by_seed.items()} == {
        5: "net-rate0.001-seed5",
        6: "net-rate0.001-seed6",
    }
    assert trained == [f"net-rate{rate}-seed5" for rate in ("0.00033", "0.001", "0.003")] + ["net-rate0.001-seed6"]
    assert found.by_seed[5].seconds == 4.0


def test_a_rate_that_diverges_is_a_result(tmp_path, trained):
    (found,) = Grid(tmp_path, QUIET).search([row("net")], [0], (1.0, 100.0))
    assert found.tried[0.1].error == float("inf")
    assert json.loads((tmp_path / "net-rate0.1-seed0" / "diverged.json").read_text()) == {"reason": "the loss is nan"}
    trained.clear()
    Grid(tmp_path, QUIET).search([row("net")], [0], (1.0, 100.0))
    assert "net-rate0.1-seed0" not in trained  # it is not tried again


def test_rates_have_two_digits():
    recipe = dataclasses.replace(CAPSNET, optimizer=dataclasses.replace(CAPSNET.optimizer, learning_rate=1e-3))
    assert [rate_at(recipe, factor) for factor in (1 / 3, 1, 3)] == [3.3e-4, 1e-3, 3e-3]


def test_a_missing_source_shows_before_the_first_training(tmp_path):
    data = dataclasses.replace(CNN.data, name="nowhere")
    with pytest.raises(ValueError, match="name: must be a registered name"):
        Grid(tmp_path, QUIET).results([row("caps"), row("cnn", dataclasses.replace(CNN, data=data))], [0])
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_another_recipe_is_refused(tmp_path):
    Grid(tmp_path, QUIET).results([row("caps")], [0])
    other = row("caps", dataclasses.replace(CAPSNET, epochs=2))
    with pytest.raises(CapsellaError, match="caps-seed0 holds a run of another recipe; choose another folder"):
        Grid(tmp_path, QUIET).results([other], [0])


@pytest.mark.parametrize("seeds", [[], [0, 1, 0]])
def test_seeds_must_be_some_and_different(seeds, tmp_path):
    with pytest.raises(ValueError, match="seeds: must be from 0 to 4194303, got -1"):
        Grid(tmp_path, QUIET).results([row("caps")], [0, -1])
    with pytest.raises(ValueError, match="seeds: must be at least one, and each only once, got "):
        Grid(tmp_path, QUIET).results([row("caps")], seeds)
    with pytest.raises(ValueError, match="seeds: must be at least one, and each only once, got "):
        Grid(tmp_path, QUIET).search([row("caps")], seeds, (1.0,))


def test_slugs_must_differ(tmp_path):
    with pytest.raises(ValueError, match=r"rows: must have each slug once, got \['caps', 'caps'\]"):
        Grid(tmp_path, QUIET).results([row("caps"), row("caps")], [0])


def test_a_row_that_diverges_is_left_out_now_and_when_called_again(tmp_path, monkeypatch):
    calls = []

    def fake(recipe, folder, *_):
        calls.append(folder.name)
        folder.mkdir(parents=True, exist_ok=True)
        if folder.name == "caps-seed1":
            raise TrainingDivergedError("the loss is nan")
        (folder / "result.json").write_text('{"seed": 0}')
        return {"seed": int(folder.name[-1])}

    monkeypatch.setattr(grids, "result_of", fake)
    rows, text = [row("caps"), row("cnn", CNN)], io.StringIO()
    results = Grid(tmp_path, Console(file=text, width=200)).results(rows, [0, 1])
    assert results == {"caps": [{"seed": 0}], "cnn": [{"seed": 0}, {"seed": 1}]}
    assert "diverged: the loss is nan" in text.getvalue()
    assert len(calls) == 4  # those after it, too
    assert of_common_seeds(results) == {"caps": [{"seed": 0}], "cnn": [{"seed": 0}]}
    with pytest.raises(CapsellaError, match="with some seed these diverged: caps; remove their folders"):
        check_none_diverged(results, [0, 1], tmp_path)
    calls.clear()
    assert Grid(tmp_path, QUIET).results(rows, [0, 1]) == results
    assert "caps-seed1" not in calls


def test_the_time_left_does_not_count_what_is_done_of_a_run(tmp_path):
    recipe = dataclasses.replace(CNN, epochs=10)
    begun = tmp_path / "cnn-seed0"
    begun.mkdir()
    (begun / "metrics.csv").write_text("epoch\n" + "".join(f"{epoch}\n" for epoch in range(1, 10)))
    (begun / "last.ckpt").write_text("")
    clock, text = Clock(estimates={"cnn": 100.0}), io.StringIO()
    clock.plan(["cnn", "cnn"])
    tasks = [row("cnn", recipe).task(lambda *_: None, tmp_path, seed, Machine()) for seed in (0, 1)]
    assert len(list(each(tasks, Console(file=text, width=200), clock))) == 2
    assert text.getvalue().splitlines()[0] == "run 1 of 2: cnn, seed 0; about 110 s left"
