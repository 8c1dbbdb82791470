"""The tables of Hahn 2019, Tsai 2020 and Zhao 2021: their rows, their trainings, and numbers of a tiny one."""

import csv
import dataclasses

import pytest
import torch

from capsella.models import count_parameters
from capsella.papers.hahn2019 import paper as hahn2019
from capsella.papers.published import TABLES
from capsella.routing import ROUTINGS, InvertedAttentionRouting, SelfRouting
from capsella.training import AugmentOptions, train
from capsella.training.registry import get_recipe
from tests.papers.tiny import CAPSNET, QUIET

NAMES = ("hahn2019-cifar10", "hahn2019-viewpoints", "tsai2020-cifar10", "zhao2021-errors")


def network(row, size=32):
    recipe = row.recipe
    channels = 2 if recipe.data.camera == "both" else 3 if recipe.data.name == "cifar10" else 1
    with torch.device("meta"):
        return recipe.model.create(size, channels, 5 if recipe.data.name == "smallnorb" else 10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", ["small", "night", "full"])
def test_rows(name, budget):
    rows = TABLES[name](budget).rows
    assert len({row.slug for row in rows}) == len(rows)
    for row in rows:
        full = get_recipe(row.recipe_name)
        assert row.recipe.loss.name == full.loss.name == "cross_entropy"
        assert (row.recipe.epochs == full.epochs) == (budget == "full")
        assert (row.recipe.optimizer.method, full.optimizer.method) == ("adam" if budget == "small" else "sgd", "sgd")
        assert 0.1 in (full.optimizer.learning_rate, full.optimizer.decay)


def test_networks_of_one_table_differ_as_published():
    rows = {row.label[0]: row for row in TABLES["hahn2019-cifar10"]("full").rows}
    assert {kind: row.paper for kind, row in rows.items()} == hahn2019.CIFAR10
    for kind, row in rows.items():
        millions = count_parameters(network(row)) / 1e6
        # EM's are its poses' here: 16×16 weights in place of the authors' 4×4.
        if kind != "em":
            assert millions == pytest.approx(hahn2019.MILLIONS_OF_PARAMETERS[kind], abs=0.06)


def test_viewpoints():
    rows = TABLES["hahn2019-viewpoints"]("full").rows
    assert {row.label: row.paper for row in rows} == hahn2019.VIEWPOINTS
    for row in rows:
        by, kind = row.label
        assert (row.recipe.data.viewpoints, row.recipe.data.test_viewpoints) == (by, "novel")
        routing = row.recipe.model.complete().options.get("routing")
        assert type(routing) is (ROUTINGS[kind] if kind in ROUTINGS else type(None))


def test_rounds_and_order():
    rows = TABLES["tsai2020-cifar10"]("full").rows
    options = [row.recipe.model.options for row in rows]
    assert [(o["routing"].iterations, o["concurrent"]) for o in options] == [(1, True), (2, True), (2, False)]
    assert [row.paper for row in rows] == [5.27, 5.15, None]


def test_clusters():
    rows = TABLES["zhao2021-errors"]("full").rows
    assert [(row.label[0], row.paper) for row in rows] == [("smallNORB", 1.57), ("CIFAR-10", 7.37)]
    assert [row.recipe.data.name for row in rows] == ["smallnorb", "cifar10"]


@pytest.mark.parametrize(
    ("name", "drops"),
    [
        ("hahn2019-cifar10", [150, 250]),
        ("hahn2019-azimuth", [100, 150]),
        ("tsai2020-cifar10", [150, 250]),
        ("zhao2021-smallnorb", [100, 200]),
    ],
)
def test_the_rate_drops_where_the_authors_have_it(name, drops):
    recipe = get_recipe(name)
    rates = [recipe.optimizer.rate_at(epoch * 100, recipe.epochs * 100) for epoch in range(recipe.epochs)]
    fallen = [epoch for epoch in range(1, recipe.epochs) if rates[epoch] < rates[epoch - 1]]
    assert fallen == drops
    assert [rates[0], rates[-1]] == pytest.approx([0.1, 0.001])


@pytest.mark.parametrize("name", ["hahn2019-smallnorb", "tsai2020-smallnorb", "zhao2021-smallnorb"])
def test_a_tiny_training(name, tmp_path):
    """A recipe of each, on digits, with a network of few types: the loss of the training falls."""
    options = {"hahn2019": {"types": 4, "width": 4}, "tsai2020": {"types": 2}, "zhao2021": {"types": 2, "pose": 4}}
    recipe = get_recipe(name).with_model(**options[name.partition("-")[0]])
    if "crop" in recipe.model.options:
        recipe = recipe.with_model(crop=None)
    optimizer = dataclasses.replace(recipe.optimizer, method="adam", learning_rate=3e-3)
    data = dataclasses.replace(CAPSNET.data, size=14, per_class=20, test_per_class=5)
    tiny = dataclasses.replace(
        recipe, data=data, optimizer=optimizer, augment=AugmentOptions(), epochs=4, batch_size=20
    )
    run = train(tiny, tmp_path / "run", console=QUIET)
    with (run.folder / "metrics.csv").open() as file:
        losses = [float(row["train_loss"]) for row in csv.DictReader(file)]
    assert losses[-1] < losses[0] - 0.01


def test_defaults_are_the_recipes():
    assert get_recipe("hahn2019-cifar10").model.complete().options["routing"] == SelfRouting()
    assert get_recipe("tsai2020-cifar10").model.options["routing"] == InvertedAttentionRouting(iterations=2)
