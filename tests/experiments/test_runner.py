"""Rows × seeds × learning rates on a few of scikit-learn's digits: order, resumption, time left, and refusals."""

import dataclasses
import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from capsella.errors import BusyError, CapsellaError
from capsella.experiments import (
    Row,
    Runner,
    Stopwatch,
    common_seeds,
    reevaluate,
    runner,
)
from capsella.experiments import fit as fitting
from capsella.files import alone_in
from capsella.training import ComputeOptions, RunFolder, TrainingDivergedError, load_run
from tests.papers.tiny import CAPSNET, CNN, QUIET

CPU = ComputeOptions(accelerator="cpu")


def row(slug, recipe=CAPSNET):
    return Row(slug=slug, recipe_name="demo", recipe=recipe)


@pytest.fixture
def trained(monkeypatch):
    """No training: an error of 100 times the distance of the rate from 2e-3; rates of 0.1 and more diverge."""
    calls = []

    def fake(recipe, folder, *_):
        rate = recipe.optimizer.learning_rate
        calls.append(folder.name)
        if rate >= 0.1:
            raise TrainingDivergedError("the loss is nan")
        folder.mkdir(parents=True)
        best = {"validation_error": 100 * abs(rate - 2e-3), "validation_loss": 1.0, "epoch": 1}
        (folder / "summary.json").write_text(json.dumps({"best": best, "kept_by": "validation_error", "seconds": 4.0}))
        return SimpleNamespace(splits=None)

    monkeypatch.setattr(runner, "train_or_resume", fake)
    return calls


def test_seeds_go_round_the_rows_and_what_is_finished_is_read(tmp_path, monkeypatch):
    text = io.StringIO()
    rows = [row("caps"), row("cnn", CNN)]
    results = Runner(tmp_path, Console(file=text, width=200), CPU).results(rows, [0, 3])
    lines = [line for line in text.getvalue().splitlines() if line.startswith("run ")]
    order = [("caps", 0), ("cnn", 0), ("caps", 3), ("cnn", 3)]
    assert all(f"run {n} of 4: {slug}, seed {seed}" in lines[n - 1] for n, (slug, seed) in enumerate(order, 1))
    assert all("about" in line for line in lines[1:])
    seeds = {slug: [result["seed"] for result in of_row] for slug, of_row in results.items()}
    assert seeds == {"caps": [0, 3], "cnn": [0, 3]}
    assert not list(tmp_path.glob("*/last.ckpt"))  # nothing is left to resume
    silent = io.StringIO()
    monkeypatch.setattr(fitting, "train", None)
    assert Runner(tmp_path, Console(file=silent)).results(rows, [0, 3]) == results
    assert silent.getvalue() == ""
    other = row("caps", dataclasses.replace(CAPSNET, epochs=2))
    with pytest.raises(CapsellaError, match="epochs"):
        Runner(tmp_path, QUIET).results([other], [0])


def test_the_best_learning_rate_is_chosen_and_one_that_diverges_is_a_result(tmp_path, trained):
    for _ in range(2):
        (chosen,) = Runner(tmp_path, QUIET).choose_learning_rates([row("net")], 5, (1 / 3, 1.0, 3.0, 100.0))
        assert chosen.slug == "net-rate0.001"  # as far from 2e-3 as 3e-3 is: the first of equals
    assert trained == [f"net-rate{rate}-seed5" for rate in ("0.00033", "0.001", "0.003", "0.1")]  # none a second time
    diverged = json.loads((tmp_path / "net-rate0.1-seed5" / "diverged.json").read_text())
    assert diverged == {"reason": "the loss is nan"}


def test_a_missing_source_shows_before_the_first_training(tmp_path):
    data = dataclasses.replace(CNN.data, name="nowhere")
    with pytest.raises(ValueError, match="nowhere"):
        Runner(tmp_path, QUIET).results([row("caps"), row("cnn", dataclasses.replace(CNN, data=data))], [0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seeds", [[], [0, 1, 0], [0, -1]])
def test_seeds_and_slugs_must_differ(tmp_path, seeds):
    with pytest.raises(ValueError, match=r"^seeds?:"):
        Runner(tmp_path, QUIET).results([row("caps")], seeds)
    with pytest.raises(ValueError, match=r"^rows:"):
        Runner(tmp_path, QUIET).results([row("caps"), row("caps")], [0])


def test_a_row_that_diverges_is_left_out_now_and_when_called_again(tmp_path, monkeypatch):
    calls = []

    def train(recipe, folder, *_):
        calls.append(folder.name)
        folder.mkdir(parents=True, exist_ok=True)
        if folder.name == "caps-seed1":
            raise TrainingDivergedError("the loss is nan")

    def test(folder, **_):
        RunFolder(tmp_path / calls[-1]).write("result", {"seed": int(calls[-1][-1])})
        return SimpleNamespace(splits=None)

    monkeypatch.setattr(runner, "train_or_resume", train)
    monkeypatch.setattr(runner, "evaluate_run", test)
    rows = [row("caps"), row("cnn", CNN)]
    results = Runner(tmp_path, QUIET).results(rows, [0, 1])
    assert results == {"caps": [{"seed": 0}], "cnn": [{"seed": 0}, {"seed": 1}]}
    assert len(calls) == 4  # those after it, too
    assert common_seeds(results) == {"caps": [{"seed": 0}], "cnn": [{"seed": 0}]}
    assert Runner(tmp_path, QUIET).results(rows, [0, 1]) == results
    assert len(calls) == 4


def test_a_run_in_use_is_left_alone_and_one_that_just_ended_is_read(tmp_path, monkeypatch):
    folder = tmp_path / "a-seed0"
    with alone_in(folder), pytest.raises(BusyError):
        Runner(tmp_path, QUIET, CPU).results([row("a")], [0])
    Runner(tmp_path / "made", QUIET, CPU).results([row("a")], [0])
    with pytest.raises(CapsellaError, match="a-seed0"):
        reevaluate(folder, "other", lambda: pytest.fail("images were loaded"))
    monkeypatch.setattr(
        fitting, "load_public_once", lambda data: (tmp_path / "made" / "a-seed0").rename(folder) and None
    )
    monkeypatch.setattr(fitting, "train", None)
    assert fitting.train_or_resume(CAPSNET, folder, "tiny", QUIET, CPU).folder == load_run(folder).folder == folder


def test_the_time_left_by_hand():
    stopwatch = Stopwatch()
    stopwatch.plan(["a", "a", "b", "share"])
    stopwatch.plan(["a", "a"])  # which were planned before
    assert stopwatch.left.total() == 4
    assert stopwatch.seconds_left() is None
    stopwatch.finish("a", 10.0)
    assert stopwatch.seconds_left() == 30.0  # an unknown cost takes the mean of the others
    stopwatch.finish("a", 20.0)
    assert stopwatch.seconds_left() == 30.0
    stopwatch.finish("b")  # it was finished before, and takes no time
    assert (stopwatch.done, stopwatch.seconds_left()) == (3, 15.0)
    estimated = Stopwatch({"a": 10.0, "b": 100.0})
    estimated.plan(["a", "a", "b"])
    assert estimated.seconds_left() == 120.0
    estimated.finish("a", 20.0)
    assert estimated.seconds_left() == 120.0
