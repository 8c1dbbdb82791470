"""A space: what it takes, what it says of what it does not take, and the recipe at a point of it."""

import pytest
import torch
from optuna.distributions import CategoricalDistribution as Choice
from optuna.distributions import FloatDistribution, IntDistribution

from capsella.errors import CapsellaError
from capsella.experiments.search import Space, default_space
from capsella.papers import get_recipe, list_recipes
from capsella.training.registry import with_fields
from tests.search.made import RECIPE, SPACE


def test_every_recipe_has_a_space():
    for name in list_recipes():
        recipe = get_recipe(name)
        space = default_space(recipe)
        space.check(recipe)
        assert space.recipe_at(recipe, space.point_of(recipe)) == recipe.complete(), name
        assert "optimizer.learning_rate" in space.fields, name


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "space"),
        ({"optimizer.learning_rates": FloatDistribution(1e-4, 1e-2)}, "optimizer.learning_rate"),
        ({"epochs": IntDistribution(1, 20)}, "epochs"),
        ({"data.size": Choice([17, 20])}, "data.size"),
        ({"optimizer.warmup_steps": Choice([0, 40])}, "optimizer.warmup_steps"),
        ({"optimizer.learning_rate": FloatDistribution(1e-5, 1e-4)}, "optimizer.learning_rate"),
        ({"loss.name": Choice(["margin", "spread"])}, "loss.name"),
        ({"augment.shift": IntDistribution(-2, 2)}, "augment.shift"),
        ({"loss.name": Choice(["cross_entropy", "hinge"])}, "hinge"),
    ],
)
def test_a_space_that_does_not_fit_the_recipe(fields, named):
    with pytest.raises(CapsellaError, match=named):
        Space(fields).check(RECIPE)


@pytest.mark.parametrize("name", ["batchnorm-capsnet-smallnorb", "ribeiro2020-smallnorb", "he2016-cells"])
def test_a_network_takes_all_choices_that_are_made_for_it(name):
    recipe = get_recipe(name)
    space = default_space(recipe)
    choices = {path: space.ends(path) for path in space.fields if path.startswith("model.")}
    for path, values in choices.items():
        for value in values:
            with torch.device("meta"):
                with_fields(recipe.complete(), {path: value}).model.create((48, 48), 3, list("abc"))


def test_a_part_of_a_space():
    assert list(SPACE.only(("shift", "optimizer.learning_rate")).fields) == ["augment.shift", "optimizer.learning_rate"]
    with pytest.raises(ValueError, match="shft"):
        SPACE.only(("shft",))
