"""Recipes for images of one's own, fitted to a folder."""

from pathlib import Path

import pytest
import torch

from capsella.data.outline import Outline
from capsella.papers import get_recipe
from capsella.papers.own_images import RECIPE_OF, fitted, recipe_for
from capsella.training import Recipe

OWN = ("images-efficient", "images-resnet", "images-emnet", "images-capsnet", "images-cnn", "images-matrix-capsnet")


def of(name: str, images: int = 2000, side: int = 224, channels: int = 3, train: int | None = None) -> Recipe:
    return fitted(
        get_recipe(name), Outline(Path("cells"), images, train, False, ("a", "b"), side, side, channels)
    ).recipe


@pytest.mark.parametrize("name", OWN)
def test_every_recipe_of_ones_own_makes_its_network_at_the_size_that_is_chosen(name):
    recipe = of(name)
    size = recipe.data.size
    assert recipe.data.path == Path("cells")
    with torch.device("meta"):
        recipe.model.create((size, size), recipe.data.channels, ("a", "b"))


def test_the_size_is_the_largest_that_the_images_have_and_the_recipe_takes():
    assert [of("images-efficient", side=side).data.size for side in (20, 47, 50, 64, 500)] == [32, 32, 48, 64, 64]
    assert of("images-emnet", side=500).data.size == 224
    assert of("images-capsnet", side=500).data.size == 32


def test_grey_images_stay_grey():
    assert of("images-efficient", channels=1).data.channels == 1
    assert of("images-efficient", channels=3).data.channels == 3


def test_few_images_take_smaller_batches_and_every_folder_as_many_images_in_all():
    few, usual, many = (of("images-efficient", images=number) for number in (300, 2088, 100_000))
    assert (few.batch_size, usual.batch_size) == (16, 32)
    assert usual.epochs == 30
    assert few.epochs == 100  # the most
    assert many.epochs == 20  # the fewest


def test_of_a_folder_that_is_split_the_training_images_count():
    assert of("images-efficient", images=5000, train=200).batch_size == 16


def test_the_reasons_are_flags_that_give_the_same_recipe():
    found = fitted(get_recipe("images-efficient"), Outline(Path("cells"), 351, None, False, ("a", "b"), 30, 40, 1))
    recipe = found.recipe
    assert list(found.reasons) == [
        f"--size {recipe.data.size}",
        f"--channels {recipe.data.channels}",
        f"--batch-size {recipe.batch_size}",
        f"--epochs {recipe.epochs}",
    ]


def test_small_images_are_shifted_by_the_same_share_of_their_side():
    assert [of("images-efficient", side=side).augment.shift for side in (28, 48, 64, 500)] == [2, 3, 4, 4]
    assert of("images-matrix-capsnet", side=500).augment.shift == get_recipe("images-matrix-capsnet").augment.shift


def test_a_recipe_of_a_papers_images_is_refused():
    with pytest.raises(ValueError, match="only for a recipe that trains on one, got one for 'mnist'"):
        of("sabour2017-mnist")


def test_compare_trains_the_light_networks_by_their_own_recipes():
    assert recipe_for("mazzia2021_efficient_capsnet")[0] == "images-efficient"
    assert recipe_for("he2016_resnet10")[0] == "images-resnet"
    assert all(get_recipe(name) for name in RECIPE_OF.values())


@pytest.mark.parametrize("steps", [300, 30_000])
def test_a_rate_that_falls_to_a_tenth_falls_over_the_whole_training(steps):
    """In 2,500 steps, as in its paper's recipe, it would vanish long before the end of a long training."""
    for recipe in (recipe_for("forslov2018_cnnnet1_init1")[1], get_recipe("images-emnet")):
        options = recipe.optimizer
        assert options.rate_at(steps, steps) == pytest.approx(options.learning_rate / 10)
    paper = recipe_for("sabour2017_capsnet")[1].optimizer
    assert paper.decay_steps is not None  # 0.96 at a time does not vanish


def test_validation_images_of_their_own_are_not_taken_off_the_training_images():
    for validation, number in ((True, 700), (False, 630)):
        folder = Outline(Path("cells"), 1000, 700, validation, ("a", "b"), 224, 224, 3)
        reasons = fitted(get_recipe("images-efficient"), folder).reasons.values()
        assert f"there are about {number} training images" in reasons
