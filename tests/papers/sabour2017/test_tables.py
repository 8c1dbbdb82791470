"""The tables and figures of Sabour et al. 2017: rows as published, and the machinery on scikit-learn's digits."""

import dataclasses
import json

import pytest
import torch
from PIL import Image

from capsella.data import DataOptions
from capsella.grid import Budget
from capsella.models import count_parameters, create_model
from capsella.papers import get_recipe
from capsella.papers.published import FIGURES, TABLES
from capsella.papers.sabour2017 import figures as sabour2017_figures
from capsella.papers.sabour2017 import tables as sabour2017
from capsella.training import AugmentOptions
from tests.papers.tiny import CAPSNET as TINY
from tests.papers.tiny import QUIET

PAIRS = dataclasses.replace(
    TINY,
    data=DataOptions(
        name="multi", of="digits", size=17, train_pairs=16, validation_pairs=8, test_pairs=12, pair_shift=1
    ),
)


@pytest.mark.parametrize("budget", ["small", "full"])
def test_the_rows_of_table_1(budget):
    table = sabour2017.table_1(budget)
    found = {row.label: (row.paper, row.paper_sd) for row in table.rows}
    assert found == {
        ("MNIST", "CNN", "–", "–"): (0.39, None),
        ("MNIST", "CapsNet", "1", "no"): (0.34, 0.032),
        ("MNIST", "CapsNet", "1", "yes"): (0.29, 0.011),
        ("MNIST", "CapsNet", "3", "no"): (0.35, 0.036),
        ("MNIST", "CapsNet", "3", "yes"): (0.25, 0.005),
        ("MultiMNIST", "CNN", "–", "–"): (8.1, None),
        ("MultiMNIST", "CapsNet", "1", "no"): (None, None),
        ("MultiMNIST", "CapsNet", "1", "yes"): (7.5, None),
        ("MultiMNIST", "CapsNet", "3", "no"): (None, None),
        ("MultiMNIST", "CapsNet", "3", "yes"): (5.2, None),
        ("MultiMNIST", "Efficient-CapsNet", "–", "no"): (None, None),
    }
    for row in table.rows:
        data, network, iterations, reconstruction = row.label
        assert row.recipe.data.is_paired == (data == "MultiMNIST")
        assert ("routing" in row.recipe.model.options) == ("CapsNet" in network)
        if network == "CapsNet":
            assert str(row.recipe.model.options["routing"].iterations) == iterations
            assert row.recipe.model.options["reconstruction"] == (reconstruction == "yes")
    assert len({row.slug for row in table.rows}) == len(table.rows)


def test_the_full_budget_is_the_registered_recipe():
    by_slug = {row.slug: row for row in sabour2017.table_1("full").rows}
    assert by_slug["mnist-3-yes"].recipe == get_recipe("sabour2017-mnist")
    assert by_slug["multimnist-3-yes"].recipe == get_recipe("sabour2017-multimnist")
    assert by_slug["multimnist-cnn"].recipe == get_recipe("sabour2017-multimnist-cnn")


def test_a_budget_of_pairs():
    limited = Budget(epoch_images=100, validation_pairs=20, test_pairs=30, epochs=2, batch_size=10).limit(
        get_recipe("sabour2017-multimnist")
    )
    assert (limited.epoch_images, limited.epochs, limited.batch_size) == (100, 2, 10)
    assert (limited.data.validation_pairs, limited.data.test_pairs, limited.data.train_pairs) == (20, 30, None)
    small = {row.slug: row.recipe for row in sabour2017.table_1("small").rows}["multimnist-cnn"]
    assert small.epoch_images == sabour2017.SMALL_PAIRS.epoch_images


def test_other_sources():
    pairs = sabour2017.table_1("small").on("fashion-mnist").rows
    assert {row.recipe.data.name for row in pairs} == {"fashion-mnist", "multi"}
    assert {row.recipe.data.of for row in pairs} == {None, "fashion-mnist"}
    assert {row.label[0] for row in pairs} == {"fashion-mnist", "pairs of fashion-mnist"}
    assert {(row.paper, row.paper_sd) for row in pairs} == {(None, None)}
    others = sabour2017.others("full").on("cifar10-jpeg,smallnorb-jpeg").rows
    assert [row.recipe.data.name for row in others] == ["cifar10-jpeg", "smallnorb-jpeg", "fashion-mnist"]
    assert [row.paper for row in others] == [10.6, 2.7, None]  # copies of the paper's images
    with pytest.raises(ValueError, match=r"data: each source must continue .*\['cifar10', .*got 'kmnist'"):
        sabour2017.others("full").on("kmnist")


def test_the_affnist_table_compares_networks_of_one_size():
    table = sabour2017.affnist("full")
    rows = table.rows
    assert [row.paper for row in rows] == [(0.77, 21.0), (0.78, 34.0)]
    data = rows[0].recipe.data
    assert [on.of(data) for on in table.errors_on] == [None, dataclasses.replace(data, name="affnist")]
    stand_in = table.on("affnist-like")
    assert (stand_in.errors_on[1].of(data).name, stand_in.errors_on[1].key) == ("affnist-like", "affnist-like")
    assert {row.recipe.data.name for row in (*rows, *stand_in.rows)} == {"mnist40"}
    with torch.device("meta"):
        sizes = [count_parameters(create_model(row.recipe.model.name, image_size=40)) for row in rows]
    assert sizes == [13_475_648, 13_484_826]
    for budget in ("small", "full"):
        recipes = [row.recipe for row in sabour2017.affnist(budget).rows]
        assert len({(recipe.data, recipe.augment, recipe.stop_at_error, recipe.stop_on) for recipe in recipes}) == 1
        assert recipes[0].augment == AugmentOptions(shift=6)
        assert recipes[0].stop_on == "test"


NEAREST = ("nearest_is_own_percent", "nearest_among")


@pytest.mark.parametrize(
    ("figure", "recipe", "keys"),
    [
        (sabour2017_figures.figure_3, TINY, {"test_images", "labels", "predictions", *NEAREST}),
        (sabour2017_figures.figure_4, dataclasses.replace(TINY, epochs=4), {"rows"}),
        (sabour2017_figures.figure_5, PAIRS, {"test_pairs", "labels", "predictions"}),
    ],
)
def test_a_figure_from_its_run(figure, recipe, keys, tmp_path):
    folder = tmp_path / "figure"
    made = figure("small")
    made = dataclasses.replace(made, row=dataclasses.replace(made.row, recipe=recipe))
    values = made.run(folder, (3,), "capsella figure …", QUIET)
    assert json.loads(made.path(folder).with_suffix(".json").read_text()) == values
    assert values["figures"][0]["picture"] == made.path(folder).name
    assert values["command"] == "capsella figure …"
    (drawn,) = values["figures"]
    assert drawn["run"]["seed"] == 3
    assert set(drawn["shown"]) == keys
    assert all(len(shown) > 0 for key, shown in drawn["shown"].items() if key not in NEAREST)
    with Image.open(folder / drawn["picture"]) as picture:
        assert min(picture.size) > 100


def test_the_figures_share_the_runs_of_the_table():
    slugs = {row.slug: row.recipe for row in sabour2017.table_1("small").rows}
    for figure in (sabour2017_figures.figure_3, sabour2017_figures.figure_4, sabour2017_figures.figure_5):
        made = figure("small")
        assert slugs[made.row.slug] == made.row.recipe
        assert made.family in TABLES
        assert FIGURES[made.name] is figure
        elsewhere = made.on("fashion-mnist").row.recipe.data
        assert "fashion-mnist" in (elsewhere.name, elsewhere.of)
    assert set(TABLES) >= {"sabour2017-1", "sabour2017-affnist", "sabour2017-others"}
