"""Recipes for a user's own images, and how they are adapted to a folder."""

import dataclasses
from pathlib import Path

import pytest

from capsella.data import FolderData, FolderSummary
from capsella.errors import ArgumentError
from capsella.models import list_models
from capsella.papers.own_images import RECIPE_OF, UNCHANGED, fitted, recipe_for
from capsella.training import Recipe
from capsella.training.registry import RECIPES, get_recipe


def of(name: str, images: int = 2000, side: int = 224, channels: int = 3, train: int | None = None) -> Recipe:
    return fitted(
        get_recipe(name), FolderSummary(Path("cells"), images, train, False, ("a", "b"), side, side, channels)
    )


def test_no_recipe_of_own_images_changes_pictures():
    """Nothing of a paper's images is left: neither a crop nor a change of brightness."""
    names = [name for name in list_models() if "multimnist" not in name and "affnist" not in name]
    for_folders = {name: get_recipe(name) for name in RECIPES if isinstance(get_recipe(name).data, FolderData)}
    recipes = for_folders | {name: recipe_for(name)[1] for name in names}
    assert "images-matrix-capsnet" in recipes
    changed = {
        name: options
        for name, recipe in recipes.items()
        if (options := {k: v for k, v in recipe.model.options.items() if v != UNCHANGED.get(k, v)})
    }
    assert not changed
    assert all(get_recipe(name) for name in RECIPE_OF.values())


def test_other_cnns_are_trained_as_the_residual_network_and_other_heads_as_the_capsules():
    for network, like in (
        ("hahn2019_convnet_cnn", "images-resnet"),
        ("mazzia2021_average_pooling", "images-efficient"),
    ):
        name, recipe = recipe_for(network)
        assert (name, recipe.model.name) == (like, network)
        assert recipe.optimizer == get_recipe(like).optimizer
        assert recipe.loss.name == "cross_entropy"
    assert recipe_for("mazzia2021_average_pooling")[1].model.options["halve_from"] == 48


def test_other_capsules_have_their_papers_loss_and_a_rate_at_which_they_learn():
    recipes = {name: recipe_for(name)[1] for name in ("hahn2019_convnet", "benchmark_capsnet")}
    assert [recipe.loss.name for recipe in recipes.values()] == ["cross_entropy", "margin"]
    for network, recipe in recipes.items():
        like = get_recipe("images-efficient")
        assert recipe.model.name == network
        assert recipe.optimizer == dataclasses.replace(like.optimizer, learning_rate=1e-3)


def test_the_size_is_the_largest_that_the_images_have_and_the_recipe_takes():
    assert [of("images-efficient", side=side).data.size for side in (20, 47, 50, 64, 500)] == [32, 32, 48, 64, 64]
    assert [of("images-efficient", side=side).augment.shift for side in (28, 48, 64, 500)] == [2, 3, 4, 4]
    assert of("images-emnet", side=500).data.size == 224
    assert [of("images-efficient", channels=channels).data.channels for channels in (1, 3)] == [1, 3]


def test_few_images_take_smaller_batches_and_every_folder_as_many_images_in_all():
    few, recipe, many = (of("images-efficient", images=number) for number in (300, 2088, 100_000))
    assert [(r.batch_size, r.epochs) for r in (few, recipe, many)] == [(16, 100), (32, 30), (32, 20)]
    assert of("images-efficient", images=5000, train=200).batch_size == 16  # the training images count


def test_a_recipe_of_a_papers_images_is_refused():
    with pytest.raises(ArgumentError) as error:
        of("sabour2017-mnist")
    assert (error.value.argument, error.value.got) == ("recipe", "mnist")


@pytest.mark.parametrize("steps", [300, 30_000])
def test_a_rate_that_falls_to_a_tenth_falls_over_the_whole_training(steps):
    """In 2,500 steps, as in its paper's recipe, it would vanish long before the end of a long training."""
    for recipe in (recipe_for("forslov2018_cnnnet1_init1")[1], get_recipe("images-emnet")):
        options = recipe.optimizer
        assert options.learning_rate_at(steps, steps) == pytest.approx(options.learning_rate / 10)
    assert recipe_for("sabour2017_capsnet")[1].optimizer.decay_steps is not None  # 0.96 at a time does not vanish
