"""The rows of the papers' tables: published numbers typed once more, recipes, and figures from their runs."""

import dataclasses
import json

import pytest
import torch
from PIL import Image

from capsella.data import NamedData, PairData, load_data
from capsella.data.sources import toys
from capsella.data.sources.base import is_familiar
from capsella.losses import LossOptions
from capsella.models import count_parameters
from capsella.papers.published import FIGURES, TABLES
from capsella.routing import EMRouting
from capsella.training import ModelOptions, Recipe
from capsella.training.registry import get_recipe
from tests.papers.tiny import CAPSNET, QUIET

BUDGETS = ("small", "medium", "full")
ERRORS = {
    "sabour2017-1": {
        ("MNIST", "CNN", "–", "–"): 0.39,
        ("MNIST", "CapsNet", "1", "no"): 0.34,
        ("MNIST", "CapsNet", "1", "yes"): 0.29,
        ("MNIST", "CapsNet", "3", "no"): 0.35,
        ("MNIST", "CapsNet", "3", "yes"): 0.25,
        ("MultiMNIST", "CNN", "–", "–"): 8.1,
        ("MultiMNIST", "CapsNet", "1", "no"): None,
        ("MultiMNIST", "CapsNet", "1", "yes"): 7.5,
        ("MultiMNIST", "CapsNet", "3", "no"): None,
        ("MultiMNIST", "CapsNet", "3", "yes"): 5.2,
        ("MultiMNIST", "Efficient-CapsNet", "–", "no"): None,
    },
    "sabour2017-others": {("CIFAR-10", "3"): 10.6, ("smallNORB", "3"): 2.7, ("Fashion-MNIST", "3"): None},
    "sabour2017-affnist": {("CapsNet",): (0.77, 21.0), ("CNN",): (0.78, 34.0)},
    "hinton2018-1": {
        ("1", "matrix", "spread", "yes", "uniform", "1"): 9.7,
        ("1", "matrix", "spread", "yes", "random", "1"): None,
        ("2", "matrix", "spread", "yes", "routed", "1"): 2.2,
        ("3", "matrix", "spread", "yes", "routed", "1"): 1.8,
        ("5", "matrix", "spread", "yes", "routed", "1"): 3.9,
        ("3", "vector", "spread", "yes", "routed", "1"): 2.9,
        ("3", "matrix", "spread", "no", "routed", "1"): 2.6,
        ("3", "vector", "spread", "no", "routed", "1"): 3.2,
        ("3", "matrix", "margin", "yes", "routed", "1"): 3.2,
        ("3", "matrix", "cross_entropy", "yes", "routed", "1"): 5.8,
        ("3", "matrix", "cross_entropy of log-odds", "yes", "routed", "1"): None,
        ("–", "CNN", "cross_entropy", "–", "–", "1"): 5.2,
    },
    "hinton2018-others": {("MNIST",): 0.44, ("CIFAR-10",): 11.9, ("Fashion-MNIST",): None},
    "hinton2018-viewpoints": {
        ("azimuth", "capsules"): (3.7, 13.5),
        ("azimuth", "CNN"): (3.7, 20.0),
        ("elevation", "capsules"): (4.3, 12.3),
        ("elevation", "CNN"): (4.3, 17.8),
    },
    "hahn2019-cifar10": {("self",): 7.86, ("dynamic",): 7.86, ("em",): 12.52, ("average pooling",): 7.94},
    "hahn2019-viewpoints": {
        ("azimuth", "self"): 19.9,
        ("azimuth", "dynamic"): 20.3,
        ("azimuth", "em"): 20.2,
        ("azimuth", "average pooling"): 21.8,
        ("elevation", "self"): 15.9,
        ("elevation", "dynamic"): 16.4,
        ("elevation", "em"): 17.5,
        ("elevation", "average pooling"): 17.7,
    },
    "tsai2020-cifar10": {("1", "at once"): 5.27, ("2", "at once"): 5.15, ("2", "one after the other"): None},
    "zhao2021-errors": {("smallNORB",): 1.57, ("CIFAR-10",): 7.37},
    "heinsen2019": {("3",): 0.9, ("1",): None},
}


@pytest.mark.parametrize("name", ERRORS)
def test_rows_have_the_published_errors(name):
    assert {row.label: row.paper for row in TABLES[name]("full").rows} == ERRORS[name]
    for budget in BUDGETS:
        rows = TABLES[name](budget).rows
        assert len({row.slug for row in rows}) == len(rows)
        for row in rows:
            assert row.recipe.complete()  # its network has these options
            assert (
                row.recipe.batch_size == rows[0].recipe.batch_size or "Multi" in str(rows[-1].label) or budget == "full"
            )


def test_rows_of_the_full_budget_train_the_papers_recipes():
    changed = [
        row.slug
        for name in ("sabour2017-1", "sabour2017-others", "sabour2017-affnist", "hinton2018-others", "zhao2021-errors")
        for row in TABLES[name]("full").rows
        if row.recipe.complete() != get_recipe(row.recipe_name).complete()
    ]
    assert changed == [f"{data}-{row}" for data in ("mnist", "multimnist") for row in ("1-no", "1-yes", "3-no")]
    (cnn,) = [row for row in TABLES["hinton2018-1"]("full").rows if row.slug == "cnn"]
    assert cnn.recipe.complete() == get_recipe("hinton2018-smallnorb-cnn").complete()


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_cnn_of_hintons_table_trains_as_its_capsules(budget):
    rows = {row.slug: row.recipe for row in TABLES["hinton2018-1"](budget).rows}
    cnn, capsules = rows["cnn"], rows["3-matrix-spread-yes-routed"]
    assert cnn == dataclasses.replace(capsules, model=cnn.model, loss=cnn.loss)
    assert cnn.model.options["crop"] == capsules.model.options["crop"] == 32
    viewpoints = TABLES["hinton2018-viewpoints"](budget).rows
    for first, second in zip(viewpoints[::2], viewpoints[1::2], strict=True):
        assert (first.recipe.data, first.recipe.stop_at_error) == (second.recipe.data, second.recipe.stop_at_error)
        assert (first.recipe.data.test_viewpoints, first.recipe.stop_on) == ("familiar", "test")
    affnist = [row.recipe for row in TABLES["sabour2017-affnist"](budget).rows]
    assert len({(r.data, r.augment, r.stop_on) for r in affnist}) == 1
    attacked = [row.recipe for row in TABLES["hinton2018-attacks"](budget).rows]
    assert len({(r.stop_at_error, r.stop_on, r.epoch_images, r.data) for r in attacked}) == 1


def test_hahns_networks_have_the_published_sizes():
    millions_in_paper = {"self": 3.2, "dynamic": 4.2, "average pooling": 0.3}
    for row in TABLES["hahn2019-cifar10"]("full").rows:
        with torch.device("meta"):
            millions = count_parameters(row.recipe.model.create(32, 3, 10)) / 1e6
        if row.slug != "em":  # has 16×16 weights here, the authors' 4×4
            assert millions == pytest.approx(millions_in_paper[row.label[0]], abs=0.06)


@pytest.mark.parametrize(
    ("name", "drops"),
    [("hahn2019-cifar10", [150, 250]), ("hahn2019-azimuth", [100, 150]), ("tsai2020-cifar10", [150, 250]),
     ("zhao2021-smallnorb", [100, 200])],
)  # fmt: skip
def test_the_learning_rate_drops_where_the_authors_have_it(name, drops):
    recipe = get_recipe(name)
    rates = [recipe.optimizer.learning_rate_at(epoch * 100, recipe.epochs * 100) for epoch in range(recipe.epochs)]
    assert [epoch for epoch in range(1, recipe.epochs) if rates[epoch] < rates[epoch - 1]] == drops
    assert [rates[0], rates[-1]] == pytest.approx([0.1, 0.001])


def test_familiar_and_novel_views_are_of_the_same_toys(monkeypatch):
    """Two elevations and azimuths of each kind, one light, at 20×20."""
    render = toys.render_toys

    def few(instances):
        images = render(instances[:2], (30, 40, 50, 70), (0, 20, 60, 200), size=20)
        return images.subset((images.metadata["lighting"] == 0).nonzero().flatten())

    monkeypatch.setattr(toys, "render_toys", few)
    table = TABLES["hinton2018-viewpoints"]("small")
    for row in table.rows[::2]:
        data = dataclasses.replace(row.recipe.data.on("toys"), size=20, validation_per_class=2, test_per_class=4)
        splits, others = load_data(data), load_data(table.test_sets[1].options(data))
        assert bool(is_familiar(splits.train, row.label[0]).all())
        assert bool(is_familiar(splits.test, row.label[0]).all())
        assert not bool(is_familiar(others.test, row.label[0]).any())
        assert torch.equal(splits.train.images, others.train.images)
        train, test, novel = (set(i.metadata["instance"].tolist()) for i in (splits.train, splits.test, others.test))
        assert test == novel
        assert not train & test


PAIRS = dataclasses.replace(
    CAPSNET,
    data=PairData(of="digits", size=17, train_pairs=16, validation_pairs=8, test_pairs=12, pair_shift=1),
)
MATRIX = Recipe(
    model=ModelOptions("hinton2018_matrix_capsnet_small", {"routing": EMRouting(iterations=3), "crop": 19}),
    data=NamedData("digits", size=25, per_class=3, validation=0.02, test_per_class=2),
    loss=LossOptions(name="spread"),
    epochs=2,
    batch_size=15,
)


@pytest.mark.parametrize(
    ("name", "recipe", "keys"),
    [
        ("sabour2017-3", CAPSNET, {"test_images", "labels", "predictions", "nearest_is_own_percent", "nearest_among"}),
        ("sabour2017-4", dataclasses.replace(CAPSNET, epochs=4), {"rows"}),
        ("sabour2017-5", PAIRS, {"test_pairs", "labels", "predictions"}),
        ("hinton2018-2", MATRIX, {"images"}),
    ],
)
def test_a_figure_from_its_run(name, recipe, keys, tmp_path):
    made = FIGURES[name]("small")
    (row,) = made.rows
    start = "demo" if recipe is MATRIX else row.recipe_name
    table = TABLES[made.family]("small")
    assert {row.slug: row.recipe for row in table.rows}[row.slug] == row.recipe  # shared runs
    made = dataclasses.replace(made, rows=(dataclasses.replace(row, recipe=recipe, recipe_name=start),))
    values = made.run(tmp_path, (3,), "capsella papers run …", QUIET)
    assert json.loads(made.path(tmp_path).with_suffix(".json").read_text()) == values
    (drawn,) = values["figures"]
    assert (drawn["picture"], drawn["run"]["seed"], set(drawn["shown"])) == (made.path(tmp_path).name, 3, keys)
    with Image.open(tmp_path / drawn["picture"]) as picture:
        assert min(picture.size) > 100
