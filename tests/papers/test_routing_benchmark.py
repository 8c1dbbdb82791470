"""The routing benchmark: what its rows have in common, how rates are chosen, ranks, gains and a tiny table."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from capsella.cli.main import main
from capsella.data import load_data
from capsella.errors import ArgumentError
from capsella.experiments import CorrectnessTable, Task, ValidationResult, unpack_correct
from capsella.papers.budget import Budget, Budgets
from capsella.papers.routing_benchmark import datasets, table
from capsella.papers.routing_benchmark.datasets import (
    DATASETS,
    OTHERS,
    BenchmarkDataset,
    ChangedImages,
    choose_rate,
    datasets_on,
    rows_on,
)
from capsella.papers.routing_benchmark.lengths import TrainingLengths
from capsella.papers.routing_benchmark.table import RoutingBenchmark, ranks
from capsella.routing import ROUTINGS
from capsella.training import ModelOptions, Recipe, RunFolder, registry
from capsella.training.registry import get_recipe
from tests.papers.tiny import CAPSNET, QUIET

POOLED = "CNN, average pooling"
TINY = Budget(epochs=2, epoch_images=32, batch_size=16, validation_per_class=1, test_per_class=2, ema=0.9)


def changed(data):
    return "digits again", load_data(dataclasses.replace(data, split_seed=1)).test


DIGITS = BenchmarkDataset("digits", "routings-tiny", ("digits",), Budgets(TINY, TINY), ChangedImages("others", changed))
STOPPED = dataclasses.replace(DIGITS, label="digits, stopped", stops=True)


def tiny_recipe():
    model = ModelOptions("benchmark_capsnet", {"parameters": 80_000})
    return dataclasses.replace(CAPSNET, model=model, loss=get_recipe("routings-digits").loss)


@pytest.fixture
def tiny(monkeypatch):
    """`tiny("heinsen", …)` leaves these rows, one rate, and few images; the fixture's value is the benchmark."""
    monkeypatch.setitem(registry.RECIPES, "routings-tiny", tiny_recipe)
    monkeypatch.setattr(datasets, "DATASETS", (DIGITS,))
    monkeypatch.setattr(datasets, "FACTORS", (1.0,))
    monkeypatch.setenv("COLUMNS", "200")

    def make(*names, dataset=DIGITS):
        monkeypatch.setattr(datasets, "ROUTINGS", {name: ROUTINGS[name] for name in names if name in ROUTINGS})
        monkeypatch.setattr(datasets, "OTHERS", {name: OTHERS[name] for name in names if name in OTHERS})
        return RoutingBenchmark(budget="small", datasets=((dataset, "digits"),))

    return make


def by_routing(values):
    return {row["label"][1]: row for row in values["rows"]}


def accuracy(tests):
    return np.stack([unpack_correct(test) for test in tests]).mean(0)


def test_rows_differ_in_network_and_loss_alone():
    uniform = {"em, uniform", "heinsen, uniform", "inverted attention, uniform", "variational, uniform"}
    names = {*(name.replace("_", " ") for name in ROUTINGS), *OTHERS, *uniform}
    benchmark = RoutingBenchmark(budget="small")
    slugs = [row.slug for row in benchmark.rows_to_train()]
    assert len(set(slugs)) == len(slugs) == len(DATASETS) * len(names)
    for dataset, source in benchmark.datasets:
        rows = rows_on(dataset, source, "small")
        assert {row.label[1] for row in rows} == names
        for row in rows:
            same = dataclasses.replace(row.recipe, model=rows[0].recipe.model, loss=rows[0].recipe.loss)
            assert same == rows[0].recipe
            assert row.recipe.stop_at_error is None  # nothing looks at test images while rates are tried
            if row.label[1] in uniform | {"uniform"}:
                (routed,) = [other for other in rows if other.uniform == row.slug]
                assert f"{routed.label[1]}, uniform".removeprefix("dynamic, ") == row.label[1]


def test_sources():
    found = [(dataset.label, source) for dataset, source in datasets_on("mnist,cifar10-jpeg")]
    assert found == [("MNIST", "mnist40"), ("CIFAR-10", "cifar10-jpeg")]
    with pytest.raises(ArgumentError) as error:
        datasets_on("kmnist")
    assert error.value.argument == "data"


def test_rows_have_different_ranks_only_where_they_differ_significantly():
    right = {name: np.arange(400) < number for name, number in {"a": 380, "b": 376, "c": 200, "d": 100}.items()}
    hits = {name: CorrectnessTable(np.stack([row, row])) for name, row in right.items()}
    assert ranks(hits) == {"a": "1–2", "b": "1–2", "c": "3", "d": "4"}
    assert ranks({name: hits[name] for name in ("a", "b")}) == {"a": "–", "b": "–"}
    assert ranks({name: CorrectnessTable(row.correct[:1]) for name, row in hits.items()}) == {}  # a single seed
    toys = np.repeat(np.arange(4), 100)  # a hundred views of four toys are not four hundred images
    assert ranks({name: CorrectnessTable(hits[name].correct, toys) for name in "ac"}) == {"a": "–", "c": "–"}
    apart = {
        "a": CorrectnessTable(np.stack([right["a"], right["d"]])),
        "c": CorrectnessTable(np.stack([right["c"], right["c"]])),
    }
    assert ranks(apart) == {"a": "–", "c": "–"}  # seeds differ as much as rows do
    generator = np.random.default_rng(0)
    alike = {str(row): CorrectnessTable(generator.random((3, 500)) < 0.9) for row in range(20)}
    assert set(ranks(alike).values()) == {"–"}  # each pair by itself would differ now and then


@pytest.mark.parametrize(
    ("tried", "rate"),
    [
        ({1.0: (40, 30), 3.0: (39, 29)}, 3.0),
        ({1.0: (40, 30), 3.0: (20, 31)}, 1.0),  # one split, however much, is not enough
        ({0.5: (39, 28), 1.0: (40, 30), 3.0: (39, 29)}, 0.5),
        ({1.0: (np.inf, 30), 3.0: (39, 29)}, 3.0),
        ({1.0: (np.inf, np.inf), 3.0: (np.inf, np.inf)}, 1.0),
    ],
)
def test_another_rate_must_be_better_on_every_split(tried, rate, tiny):
    row = tiny("self").rows_to_train()[0]
    optimizer = dataclasses.replace(row.recipe.optimizer, learning_rate=1.0)
    row = dataclasses.replace(row, recipe=dataclasses.replace(row.recipe, optimizer=optimizer))
    found = {at: [ValidationResult(Path(), float(error), 0.0) for error in errors] for at, errors in tried.items()}
    assert choose_rate(row, found).rate == rate


def test_a_tiny_benchmark_from_the_command_line(tiny, tmp_path, monkeypatch):
    tiny("self", POOLED)
    monkeypatch.setattr(datasets, "FACTORS", (1.0, 3.0))
    tested, choose, test = [], table.choose_rates, Task.run

    def chose(rows, grid):
        chosen = choose(rows, grid)
        assert not [*tmp_path.rglob("test.json"), *tmp_path.rglob("result.json"), *tested]  # validation alone chooses
        for one in chosen:
            default, other = one.tried.values()
            assert one.rate == list(one.tried)[all(a > b for a, b in zip(default, other, strict=True))]
        return chosen

    monkeypatch.setattr(table, "choose_rates", chose)
    monkeypatch.setattr(
        Task, "run", lambda task, *given: (task.is_tested and tested.append(task)) or test(task, *given)
    )
    folder = tmp_path / "mine"
    words = ["papers", "run", "routings", "--data", "digits", "--seeds", "2", "--out", str(folder)]
    main(words)
    values = json.loads((folder / "mine.json").read_text())
    assert {tuple(row["label"]) for row in values["rows"]} == {("digits", "self"), ("digits", POOLED)}
    short = [RunFolder(path.parent).read_config()[1] for path in folder.glob("*split*/config.json")]
    assert {recipe.data.split_seed for recipe in short} == set(range(datasets.SPLITS))
    assert {recipe.epochs for recipe in short} == {1}
    for row in values["rows"]:
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        assert row["rate"] in map(float, row["validation_errors_by_rate"])
        cells = dict(zip(values["heads"], row["cells"], strict=True))
        low, high = row["error"]["interval_95_percent"]
        assert low <= row["error"]["error_percent"] <= high
        assert cells["error, ours %"].startswith(f"{row['error']['error_percent']:.2f} [{low:.1f}, {high:.1f}]")
        assert cells["rate"].endswith(" (edge)")  # as both of two rates are
        for run in row["runs"]:
            recipe = Recipe.from_dict(run["recipe"])
            assert (recipe.optimizer.learning_rate, recipe.data.validation) == (row["rate"], datasets.LEFT_OUT)


@pytest.mark.slow
def test_gains_over_uniform_couplings_are_at_the_rate_of_the_row(tiny, tmp_path, monkeypatch):
    benchmark = tiny("heinsen")

    def chosen(rows, grid):
        rates = {row.slug: datasets.scaled_learning_rate(row.recipe, 1.0 if row.uniform else 3.0) for row in rows}
        return [datasets.ChosenRate(datasets.at_chosen_rate(r, rates[r.slug]), rates[r.slug]) for r in rows]

    monkeypatch.setattr(table, "choose_rates", chosen)
    rows = by_routing(benchmark.run(tmp_path, (0, 1), "c", QUIET))
    routed, uniform = rows["heinsen"], rows["heinsen, uniform"]
    assert {run["recipe"]["optimizer"]["learning_rate"] for run in routed["uniform_runs"]} == {routed["rate"]}
    assert {run["recipe"]["optimizer"]["learning_rate"] for run in uniform["runs"]} == {3 * routed["rate"]}
    models = [[run["recipe"]["model"] for run in of] for of in (routed["uniform_runs"], uniform["runs"])]
    assert models[0] == models[1]
    gain = routed["gain_over_uniform"]
    own, others = (accuracy([run["test"] for run in routed[key]]) for key in ("runs", "uniform_runs"))
    assert gain["points"] == pytest.approx(100 * (own - others).mean())
    assert gain["interval_95_points"][0] <= gain["points"] <= gain["interval_95_points"][1]
    assert uniform["gain_over_uniform"] is None


@pytest.mark.parametrize(("error", "reached"), [(99.0, True), (0.0, False)])
def test_networks_that_stop_at_one_error_gain_on_changed_images(tiny, tmp_path, monkeypatch, error, reached):
    monkeypatch.setitem(datasets.STOPS, "small", error)
    values = tiny("heinsen", POOLED, dataset=STOPPED).run(tmp_path, (0, 1), "c", QUIET)
    rows = by_routing(values)
    assert not [*tmp_path.glob("*split*")]  # all have the recipe's rate
    if not reached:
        assert {row[gain] for row in values["rows"] for gain in ("gain_over_uniform", "gain_over_cnn")} == {None}
        assert all("not reached" in row["cells"][3] and row["cells"][4] == "–" for row in values["rows"])
        return
    routed, uniform, cnn = (accuracy(rows[name]["changed"]) for name in ("heinsen", "heinsen, uniform", POOLED))
    assert rows["heinsen"]["gain_over_uniform"]["points"] == pytest.approx(100 * (routed - uniform).mean())
    assert rows["heinsen"]["gain_over_cnn"]["points"] == pytest.approx(100 * (routed - cnn).mean())
    assert rows[POOLED]["gain_over_cnn"] is None


def test_only_some_rows(tiny, tmp_path):
    benchmark = dataclasses.replace(tiny("self", "dynamic"), only=("self",))
    values = benchmark.run(tmp_path, (0,), "c", QUIET)
    assert [row["cells"][1] for row in values["rows"]] == ["self"]
    assert not [*tmp_path.glob("*dynamic*")]
    with pytest.raises(ArgumentError) as error:
        dataclasses.replace(benchmark, only=("slef",)).run(tmp_path, (0,), "c", QUIET)
    assert error.value.argument == "rows"


@pytest.mark.slow
def test_gains_by_length_of_training(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "FACTORS", (1.0, 3.0))
    lengths = TrainingLengths(budget="small", datasets=tiny("dynamic", "uniform", "self").datasets)
    values = lengths.run(tmp_path, (0, 1), "c", QUIET)
    assert [row["label"] for row in values["rows"]] == [["digits", "dynamic", n] for n in ("64", "256", "1,024")]
    searched = {path.name.partition("-rate")[0].rpartition("-")[2] for path in tmp_path.glob("*split*")}
    assert searched == {"1n", "4n"}
    first, second, third = values["rows"]
    for key in ("runs", "uniform_runs"):
        rates = [{run["recipe"]["optimizer"]["learning_rate"] for run in row[key]} for row in (second, third)]
        assert rates[0] == rates[1]
    routed, uniform, longer = (
        accuracy([run["test"] for run in runs])
        for runs in (first["runs"], first["uniform_runs"], second["uniform_runs"])
    )
    assert first["gain"]["estimate"] == pytest.approx((routed - uniform).mean())
    assert first["gain_over_longer"]["estimate"] == pytest.approx((routed - longer).mean())
    assert third["gain_over_longer"] is None
    with pytest.raises(ArgumentError, match="rows"):
        dataclasses.replace(lengths, only=("self",)).run(tmp_path, (0, 1), "c", QUIET)  # has no twin
