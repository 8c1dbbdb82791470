"""A space: what it takes, what it says of what it does not take, and the recipe at a point of it."""

import subprocess
import sys

import pytest
import torch

from capsella.errors import CapsellaError
from capsella.papers import get_recipe, list_recipes
from capsella.routing import EMRouting
from capsella.search import Choice, Range, Space, default_space, register_space
from capsella.search import space as spaces
from capsella.search.space import with_value
from capsella.search.study import check_optuna
from tests.search.made import RECIPE, SPACE


def test_every_recipe_has_a_space():
    for name in list_recipes():
        recipe = get_recipe(name)
        space = default_space(recipe, name)
        space.check(recipe)
        assert space.recipe_at(recipe, space.labels_of(recipe)) == recipe.complete(), name
        assert "optimizer.learning_rate" in space.of, name


@pytest.mark.parametrize("name", ["", "images-emnet"])
def test_em_routing_and_widths_are_in_it(name):
    space = default_space(get_recipe("images-emnet"), name)
    fields = {"iterations", "inverse_temperature", "variance_floor", "beta_a_scale"}
    assert {f"model.routing.{name}" for name in fields} <= set(space.of)
    assert {"model.types", "model.front_width", "model.kernel", "model.pose_elements"} <= set(space.of)


def test_the_rival_of_em_networks_is_trained_in_the_same_ways():
    em, rival = (default_space(get_recipe(name), name) for name in ("forslov2018-emnet1-init1-modern", "he2016-cells"))
    # The rival has its usual cosine; which of two schedules EM networks want is not known.
    assert set(em.of) - set(rival.of) - {"loss.name", "optimizer.schedule"} == {
        path for path in em.of if path.startswith("model.")
    }
    assert "model.width" in rival.of


def test_the_recipe_at_a_point():
    space = Space({**SPACE.of, "model.routing.iterations": Range(1, 4), "batch_size": Choice(10, 20)})
    point = {"optimizer.learning_rate": 2e-3, "augment.shift": 1, "model.pose_elements": 9, "batch_size": 10}
    recipe = space.recipe_at(RECIPE, {**point, "model.routing.iterations": 2})
    assert (recipe.optimizer.learning_rate, recipe.augment.shift, recipe.batch_size) == (2e-3, 1, 10)
    assert recipe.model.options["routing"] == EMRouting(iterations=2)
    assert recipe.model.options["pose_elements"] == 9


def test_values_that_are_no_numbers_or_words_are_kept_as_text():
    choice = Choice((1, 2), (3, 4), None)
    assert choice.labels == ("(1, 2)", "(3, 4)", None)
    assert [choice.value(label) for label in choice.labels] == [(1, 2), (3, 4), None]


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("of", "text"),
    [
        ({}, "must name at least one field"),
        ({"optimizer.learning_rates": Range(1e-4, 1e-2)}, "no field .*; did you mean optimizer.learning_rate"),
        ({"epochs": Range(1, 20)}, "epochs must be the same for every candidate"),
        ({"data.size": Choice(17, 20)}, "data.size must be the same"),
        ({"loss.spread_steps": Range(1000, 9000, log=True)}, "loss.spread_steps must be the same"),
        ({"optimizer.learning_rate": Range(1e-5, 1e-4)}, "the recipe's own value: must be in the range"),
        ({"loss.name": Choice("margin", "spread")}, "the recipe's own value: must be one of margin, spread"),
        ({"augment.shift": Range(-2, 2)}, "augment.shift = -2: shift: must not be negative"),
        ({"loss.name": Choice("cross_entropy", "hinge")}, "loss.name = 'hinge': loss name: must be a registered name"),
    ],
)
def test_what_a_recipe_does_not_take(of, text):
    with pytest.raises(CapsellaError, match=text):
        Space(of).check(RECIPE)


def test_ranges_and_choices_that_are_none():
    with pytest.raises(ValueError, match="low before high"):
        Range(2, 1)
    with pytest.raises(ValueError, match="low: must be above 0"):
        Range(0, 1, log=True)
    with pytest.raises(ValueError, match="at least two different ones"):
        Choice(1, 1)


@pytest.mark.parametrize("name", ["stem-capsnet-smallnorb-best", "ribeiro2020-smallnorb", "tsai2020-cifar10"])
def test_a_network_takes_all_choices_that_are_made_for_it(name):
    recipe = get_recipe(name)
    space = default_space(recipe)
    choices = {path: values.ends for path, values in space.of.items() if path.startswith("model.")}
    assert ("model.norm" in choices) == (name == "tsai2020-cifar10")
    for path, values in choices.items():
        for value in values:
            with torch.device("meta"):
                with_value(recipe.complete(), path, value).model.create((48, 48), 3, list("abc"))


def test_a_part_of_a_space():
    assert list(SPACE.only(("shift", "optimizer.learning_rate")).of) == ["augment.shift", "optimizer.learning_rate"]
    with pytest.raises(ValueError, match="'shft' must name one field of the space; did you mean"):
        SPACE.only(("shft",))


def test_a_space_beside_a_recipe(monkeypatch):
    monkeypatch.setattr(spaces, "_SPACES", {})
    register_space("tiny")(lambda recipe: SPACE)
    assert default_space(RECIPE, "tiny") is SPACE
    assert default_space(RECIPE, "other") is not SPACE


def test_optuna_is_loaded_by_a_search_alone():
    code = "import sys, capsella.search, capsella.cli.search; assert 'optuna' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_optuna(monkeypatch):
    monkeypatch.setattr("capsella.errors.find_spec", lambda name: None)
    with pytest.raises(CapsellaError, match=r"a search needs optuna: pip install 'capsella\[search\]'"):
        check_optuna()


def test_a_schedule_is_its_recipes_own_or_the_cosine():
    """An exponential one needs a decay and steps that recipes of other schedules do not have."""
    own = {
        "he2016-cells": None,
        "capsnet-mnist-best": None,
        "hahn2019-cifar10": ("steps", "cosine"),
        "images-emnet": ("exponential", "cosine"),
    }
    for name, schedules in own.items():
        found = default_space(get_recipe(name), name).of.get("optimizer.schedule")
        assert (found and set(found.values)) == (schedules and set(schedules))
