"""Recipes: their fields, files and schedules, and the registered ones as a whole."""

import json
import math
from pathlib import Path

import pytest
import torch

from capsella.data import FolderData, NamedData
from capsella.errors import CapsellaError
from capsella.models import create_model
from capsella.models.base import _MODELS
from capsella.papers import get_recipe, list_recipes, recipe_group, recipe_summary
from capsella.routing import EMRouting
from capsella.training import AugmentOptions, ComputeOptions, ModelOptions, OptimizerOptions, Recipe, read_recipe

NETWORKS = dict(_MODELS)
DIGITS = {"model": ModelOptions("sabour2017_capsnet"), "data": NamedData()}


@pytest.fixture(autouse=True)
def _registered_networks(monkeypatch, _tiny_network):
    monkeypatch.setattr("capsella.models.base._MODELS", NETWORKS)


def test_registered_recipes_survive_json_describe_themselves_and_make_their_networks():
    offenders = []
    for name in list_recipes():
        recipe = get_recipe(name)
        survives = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
        described = len(recipe_summary(name)) > 20 and recipe_group(name)
        size = {} if recipe.data.size is None else {"image_size": recipe.data.size}
        if recipe.model.options.get("backbone") == "":  # which the user names
            recipe = recipe.with_model(backbone="he2016_resnet10")
        with torch.device("meta"):
            model = create_model(recipe.model.name, **recipe.model.options, **size)
        if not (survives and described and model.name == recipe.model.name):
            offenders.append(name)
    assert not offenders


def test_paths_routings_and_options_survive_json():
    recipe = Recipe(
        model=ModelOptions("hinton2018_matrix_capsnet", {"routing": EMRouting(iterations=2)}),
        data=FolderData(Path("my cells"), split_file=Path("split.csv"), group="(p[0-9]+)"),
        augment=AugmentOptions(shift=3, rotation=10.0, flip=True),
        optimizer=OptimizerOptions(
            learning_rate=3e-4, gradient_clip=1.0, schedule="steps", decay=0.1, drops=(0.4, 0.8)
        ),
        patience=4,
    )
    read = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert read == recipe
    assert isinstance(read.data.path, Path)
    assert isinstance(read.model.options["routing"], EMRouting)


@pytest.mark.parametrize(
    ("argument", "fields"),
    [
        *(("epochs", {"epochs": 0}), ("balance", {"balance": "even"}), ("seed", {"seed": 2**22})),
        *(("patience", {"keep": "last", "patience": 3}), ("stop_at_error", {"stop_at_error": -1.0})),
        ("learning_rate", {"optimizer": OptimizerOptions(learning_rate=math.inf)}),
        (
            "cost_scale",
            {"model": ModelOptions("hinton2018_matrix_capsnet", {"routing": EMRouting(cost_scale=math.inf)})},
        ),
    ],
)
def test_a_recipe_checks_its_fields(argument, fields):
    with pytest.raises(ValueError, match=rf"^{argument}:"):
        Recipe(**{**DIGITS, **fields})


@pytest.mark.parametrize(
    ("options", "argument", "fields"),
    [
        (ComputeOptions, "devices", {"devices": 0}),
        (OptimizerOptions, "drops", {"drops": (0.5, 0.5)}),
        (OptimizerOptions, "decay", {"schedule": "steps", "drops": (0.5,)}),
        (AugmentOptions, "padding_mode", {"padding_mode": "mirror"}),
    ],
)
def test_options_check_their_fields(options, argument, fields):
    with pytest.raises(ValueError, match=rf"^{argument}:"):
        options(**fields)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda values: values.pop("data"), "'data'"),
        (lambda values: values.update(epochs="2"), "epochs: "),
        (lambda values: values["data"].update(siz=64), "did you mean size"),
        (lambda values: values["model"]["routing"].update(iterations=2.5), "routing.iterations: "),
        (lambda values: values.update(augment=3), "not a recipe"),
    ],
)
@pytest.mark.usefixtures("as_users_call")
def test_the_damage_of_a_recipe_is_named(change, text):
    values = get_recipe("demo").to_dict()
    change(values)
    with pytest.raises(CapsellaError) as error:
        Recipe.from_dict(values)
    assert text in str(error.value)


@pytest.mark.parametrize(("option", "value"), [("primary_typs", 3), ("reconstruction", "false")])
def test_options_of_a_network_that_were_written_by_hand(tmp_path, option, value):
    values = get_recipe("sabour2017-mnist").to_dict()
    values["model"] |= {option: value}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"recipe": values}))
    with pytest.raises(CapsellaError, match=option) as error:
        read_recipe(file)
    assert str(file) in str(error.value)


def rates(steps, total, **options):
    return [OptimizerOptions(**options).learning_rate_at(step, total) for step in steps]


def test_the_learning_rate_decays_smoothly_down_to_a_floor():
    options = {"learning_rate": 0.5, "decay": 0.25, "decay_steps": 10}
    assert rates((0, 5, 10, 20), 100, **options) == pytest.approx([0.5, 0.25, 0.125, 0.03125])
    assert rates((10, 20), 100, least_rate=0.1, **options) == pytest.approx([0.125, 0.1])
    assert rates([10**6], 10**7, learning_rate=0.5, decay=1.0) == [0.5]


def test_steps_drop_the_learning_rate_after_a_warm_up():
    options = {"learning_rate": 0.1, "schedule": "steps", "decay": 0.1, "drops": (0.5, 0.75), "warmup_steps": 2}
    expected = [0.05, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert rates((0, 1, 2, 49, 50, 74, 75, 100), 100, **options) == pytest.approx(expected)


def test_a_cosine_ends_at_zero_after_a_warm_up():
    found = rates(range(105), 104, learning_rate=0.8, schedule="cosine", warmup_steps=4)
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert (found[54], found[104]) == (pytest.approx(0.4), pytest.approx(0.0))
    assert found[4:] == sorted(found[4:], reverse=True)
