"""Table 1: the paper's numbers, and each row from the flags alone."""

import shlex

import pytest
import torch
import tyro

from capsella.cli.flags import prepare
from capsella.cli.train import Train
from capsella.experiments.hinton2018 import SMALL, table_1
from capsella.models import create_model
from capsella.training import get_recipe
from capsella.training.command import command, complete

# The flags of a row, and the test error of the paper.
ROWS = {
    "--iterations 1": 9.7,
    "--iterations 1 --start random": None,
    "--iterations 2": 2.2,
    "": 1.8,
    "--iterations 5": 3.9,
    "--pose vector": 2.9,
    "--no-coordinate-addition": 2.6,
    "--pose vector --no-coordinate-addition": 3.2,
    "--loss margin": 3.2,
    "--loss cross_entropy": 5.8,
}


def parsed(name, flags):
    recipe, words = prepare(get_recipe(name), shlex.split(flags))
    return tyro.cli(Train, default=Train(recipe), args=words).recipe


@pytest.mark.parametrize(("row", "flags", "paper"), [(n, *item) for n, item in enumerate(ROWS.items())])
def test_the_flags_of_a_row_are_enough(row, flags, paper):
    table = table_1("full")
    ours = table.rows[row]
    recipe = parsed("hinton2018-smallnorb", flags)
    assert recipe == complete(ours.recipe)
    assert ours.paper == paper
    words = command(ours.recipe_name, ours.recipe).split()
    assert words[:3] == ["capsella", "train", "hinton2018-smallnorb"]
    assert len(words[3:]) == len(flags.split())
    with torch.device("meta"):
        create_model(**recipe.model, image_size=recipe.data.size)


def test_a_row_a_combination():
    for budget in ("small", "full"):
        table = table_1(budget)
        assert len(table.rows) == len(ROWS)
        assert len({row.slug for row in table.rows}) == len({row.label for row in table.rows}) == len(ROWS)
        assert all(len(row.label) == len(table.columns) for row in table.rows)
    assert [row.label[-1] for row in table.rows] == ["uniform", "random", *["routed"] * 8]


def test_the_small_budget():
    assert str(SMALL) in table_1("small").note
    assert str(SMALL) not in table_1("full").note
    for small, full in zip(table_1("small").rows, table_1("full").rows, strict=True):
        assert small.recipe.data.per_class == SMALL.per_class
        assert small.recipe.data.validation_per_class == SMALL.validation_per_class
        assert small.recipe.data.test_per_class == SMALL.test_per_class
        assert (small.recipe.epochs, small.recipe.batch_size) == (SMALL.epochs, SMALL.batch_size)
        assert full.recipe.data == get_recipe("hinton2018-smallnorb").data
        assert small.recipe.model == {**full.recipe.model, "name": "hinton2018_matrix_capsnet_small"}
        assert small.recipe.loss == full.recipe.loss


@pytest.mark.parametrize("name", ["hinton2018-smallnorb", "hinton2018-smallnorb-small", "hinton2018-smallnorb-cnn"])
def test_the_protocol_of_the_paper(name):
    recipe = parsed(name, "--data.name smallnorb-jpeg")
    assert (recipe.data.name, recipe.data.size, recipe.model["crop"], recipe.model["standardise"]) == (
        "smallnorb-jpeg", 48, 32, True
    )  # fmt: skip
    assert recipe.model["brightness"] > 0
    assert recipe.model["contrast"] > 0
    assert recipe.data.group == "instance"
    assert recipe.loss.name == ("cross_entropy" if "cnn" in name else "spread")
