"""Flags of a recipe: their names, what they change, and the command that a result states."""

import dataclasses
import shlex
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capsella.cli.flags import parse
from capsella.cli.train import Train
from capsella.data import FolderData, NamedData, PairData
from capsella.models import list_models
from capsella.papers import get_recipe, list_recipes
from capsella.routing import ROUTINGS, DynamicRouting, UniformRouting
from capsella.training import ModelOptions
from capsella.training.registry import recipe_fields, train_command, with_fields


def parsed(flags: str, name: str = "demo"):
    return with_fields(get_recipe(name), parse(Train, [name, *shlex.split(flags)], "train").given)


def test_flags_are_unique_and_explained():
    fields = recipe_fields().values()
    assert [flag for flag, number in Counter(field.flag for field in fields).items() if number > 1] == []
    assert [field.path for field in fields if not field.text] == []


def test_options_of_the_network():
    recipe = parsed("--model-kwargs routing.iterations=1 reconstruction=False")
    assert recipe.model.options["routing"].iterations == 1
    assert recipe.model.options["reconstruction"] is False
    assert parsed("--model-kwargs routing=uniform").model.options["routing"] == UniformRouting()
    both = parsed("--model-kwargs routing.iterations=5 routing=dynamic")
    assert both.model.options["routing"] == DynamicRouting(iterations=5)
    assert parsed("--model-kwargs crop=None", "hinton2018-smallnorb").model.options["crop"] is None
    for wrong in ("iterations=1", "crop=large", "routing.steps=2", "reconstruction"):
        with pytest.raises(ValueError, match="must"):
            parsed(f"--model-kwargs {wrong}")


def test_another_network_brings_its_options_and_its_loss():
    recipe = parsed("--model sabour2017_cnn --model-kwargs dropout=0.25")
    assert recipe.model == ModelOptions("sabour2017_cnn", {"dropout": 0.25})
    assert recipe.loss.name == "cross_entropy"
    assert parsed("--model sabour2017_cnn --loss margin").loss.name == "margin"
    assert parsed("--model sabour2017_capsnet", "images-cnn").loss.name == "margin"


def test_another_source_of_images():
    recipe = parsed("--data fashion-mnist --per-class 100", "images-efficient")
    assert (recipe.data.name, recipe.data.per_class) == ("fashion-mnist", 100)
    assert isinstance(recipe.data, NamedData)
    assert parsed("--data cells.npz", "images-efficient").data.path == Path("cells.npz")
    assert parsed("--data lab-a/,lab-b/", "images-efficient").data.domains == ("lab-a/", "lab-b/")
    assert isinstance(parsed("--data pairs --of digits --shift 0").data, PairData)
    with pytest.raises(ValueError, match="duplicates"):
        parsed("--data digits --duplicates keep")


texts = st.text(st.sampled_from("ab1 '\"$(-)=.é"), min_size=1).filter(lambda text: not text.startswith("-"))
overrides = st.fixed_dictionaries(
    {},
    optional={
        "epochs": st.integers(1, 99),
        "patience": st.none() | st.integers(1, 9),
        "deterministic": st.booleans(),
        "precision": st.sampled_from(["auto", "32-true", "bf16-mixed"]),
        "loss.name": st.sampled_from(["margin", "spread", "cross_entropy"]),
        "loss.reconstruction": st.sampled_from(["sum", "mean"]),
        "optimizer.learning_rate": st.floats(1e-9, 1e9),
        "optimizer.gradient_clip": st.none() | st.floats(1e-9, 1e9),
        "augment.shift": st.integers(0, 9),
        "augment.flip": st.booleans(),
        "data.size": st.none() | st.integers(1, 99),
        "data": texts.map(lambda text: f"{text}/x"),
    },
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(list_recipes()),
    network=st.none() | st.sampled_from(list_models()),
    routing=st.none() | st.sampled_from(sorted(ROUTINGS)),
    reconstruction=st.none() | st.booleans(),
    changes=overrides,
)
def test_the_command_of_a_recipe_trains_it(name, network, routing, reconstruction, changes):
    recipe = get_recipe(name).complete()
    if network is not None:
        recipe = recipe.with_network(network)
    if routing is not None and "routing" in recipe.model.options:
        recipe = dataclasses.replace(recipe, model=recipe.model.with_options({"routing": routing}))
    if reconstruction is not None and "reconstruction" in recipe.model.options:
        recipe = recipe.with_model(reconstruction=reconstruction)
    for path, value in changes.items():
        if recipe.data.is_paired and (path.startswith(("augment.", "data")) or path == "loss.name"):
            continue  # pairs are not augmented, and leave one loss for each kind of network
        if path == "patience" and recipe.keep == "last":
            continue  # a recipe that keeps the last epoch waits for none
        if path == "epochs" and recipe.optimizer.method == "logistic_regression":
            continue  # it is fitted once
        if path == "data" and not isinstance(recipe.data, FolderData):
            continue
        if path == "data.size" and recipe.data.cells != "whole":
            continue  # cells are cropped to a size
        recipe = with_fields(recipe, {path: value})
    words = shlex.split(train_command(name, recipe))[2:]
    again = with_fields(get_recipe(name), parse(Train, words, "train").given)
    assert again.complete() == recipe.complete()
