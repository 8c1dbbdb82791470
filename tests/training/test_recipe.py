import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
import torch

from capsella.data import DataOptions
from capsella.errors import CapsellaError
from capsella.models import create_model
from capsella.models.base import _MODELS
from capsella.papers import get_recipe, list_recipes, recipe_group, recipe_summary
from capsella.routing import ROUTINGS, DynamicRouting, EMRouting, UniformRouting
from capsella.training import AugmentOptions, Machine, ModelOptions, OptimizerOptions, Recipe, read_recipe

NETWORKS = dict(_MODELS)
DIGITS = {"model": ModelOptions("sabour2017_capsnet"), "data": DataOptions()}


@pytest.fixture(autouse=True)
def _registered_networks(monkeypatch, _tiny_network):
    monkeypatch.setattr("capsella.models.base._MODELS", NETWORKS)


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_survives_json(name):
    recipe = get_recipe(name)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_paths_routings_and_options_survive_json():
    recipe = Recipe(
        model=ModelOptions("hinton2018_matrix_capsnet", {"routing": EMRouting(iterations=2)}),
        data=DataOptions(name="folder", path=Path("my cells"), split_file=Path("split.csv"), group="(p[0-9]+)"),
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


@pytest.mark.parametrize("name", list_recipes())
def test_the_network_of_a_recipe_can_be_made(name):
    recipe = get_recipe(name)
    size = {} if recipe.data.size is None else {"image_size": recipe.data.size}
    if recipe.model.options.get("stem") == "":  # which the user names
        recipe = recipe.with_model(stem="he2016_resnet10")
    with torch.device("meta"):
        model = create_model(recipe.model.name, **recipe.model.options, **size)
    assert model.name == recipe.model.name


def test_only_recipes_that_three_seeds_have_shown_take_what_the_machine_is_fast_with():
    """LOG.md, L041, L051 and L053; the papers' own are in float32."""
    by_precision = {name: get_recipe(name).precision for name in list_recipes()}
    assert {name for name, precision in by_precision.items() if precision == "auto"} == {
        "capsnet-mnist-best",
        "images-capsnet",
        "matrix-capsnet-smallnorb-best",
        "stem-capsnet-smallnorb-best",
        "stem-capsnet-smallnorb-cnn",
    }
    assert set(by_precision.values()) == {"auto", "32-true"}


def test_recipes_for_own_images_balance_and_those_of_papers_do_not():
    balanced = {name for name in list_recipes() if get_recipe(name).balance != "none"}
    assert balanced >= {"images-capsnet", "images-cnn", "images-matrix-capsnet"}
    assert all(name.startswith("images-") for name in balanced)


def test_an_unknown_recipe_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"recipe: must be a registered name, got 'dmo'; did you mean demo\?"):
        get_recipe("dmo")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"epochs": 0}, "epochs: must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size: must be at least 1, got 0"),
        ({"patience": 0}, "patience: must be at least 1, got 0"),
        ({"balance": "even"}, "balance: must be 'auto', 'none', 'sampling' or 'weights', got 'even'"),
        ({"keep": "first"}, "keep: must be 'best' or 'last', got 'first'"),
        ({"keep": "last", "patience": 3}, "patience: must be None where the last epoch is kept, got 3"),
        ({"optimizer": OptimizerOptions(learning_rate=math.inf)}, "learning_rate: must be a finite number, got inf"),
        (
            {"model": ModelOptions("hinton2018_matrix_capsnet", {"routing": EMRouting(cost_scale=math.inf)})},
            "cost_scale: must be a finite number, got inf",
        ),
        ({"seed": -1}, "seed: must be from 0 to 4194303, got -1"),
        ({"seed": 4194304}, "seed: must be from 0 to 4194303, got 4194304"),
    ],
)
def test_a_recipe_checks_its_fields(fields, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        Recipe(**{**DIGITS, **fields})


@pytest.mark.parametrize(
    ("options", "fields", "text"),
    [
        (Machine, {"devices": 0}, "devices: must be at least 1, got 0"),
        (Machine, {"threads": 0}, "threads: must be at least 1, got 0"),
        (Machine, {"checkpoint_seconds": -1.0}, "checkpoint_seconds: must not be negative, got -1.0"),
        (AugmentOptions, {"shift": -1}, "shift: must not be negative, got -1"),
        (AugmentOptions, {"rotation": 181.0}, "rotation: must be from 0 to 180 degrees, got 181.0"),
        (AugmentOptions, {"rotation": -1.0}, "rotation: must be from 0 to 180 degrees, got -1.0"),
        (OptimizerOptions, {"learning_rate": 0.0}, "learning_rate: must be above 0, got 0.0"),
        (OptimizerOptions, {"learning_rate": math.nan}, "learning_rate: must be above 0, got nan"),
        (OptimizerOptions, {"decay": 0.0}, "decay: must be above 0, got 0.0"),
        (OptimizerOptions, {"decay_steps": 0}, "decay_steps: must be above 0, got 0"),
        (OptimizerOptions, {"l2": -0.1}, "l2: must not be negative, got -0.1"),
        (OptimizerOptions, {"method": "rmsprop"}, "method: must be 'adam' or 'sgd', got 'rmsprop'"),
        (OptimizerOptions, {"momentum": 1.0}, "momentum: must be in [0, 1), got 1.0"),
        (OptimizerOptions, {"drops": (0.5, 0.5)}, "drops: must rise within (0, 1), got (0.5, 0.5)"),
        (OptimizerOptions, {"drops": (1.0,)}, "drops: must rise within (0, 1), got (1.0,)"),
        (OptimizerOptions, {"schedule": "steps"}, "drops: must be given for the schedule of steps, got ()"),
        (OptimizerOptions, {"schedule": "steps", "drops": (0.5,)}, "decay: must be at most 0.5 for the schedule of"),
        (OptimizerOptions, {"gradient_clip": 0.0}, "gradient_clip: must be above 0 or None, got 0.0"),
        (OptimizerOptions, {"gradient_clip": -1.0}, "gradient_clip: must be above 0 or None, got -1.0"),
    ],
)
def test_options_check_their_fields(options, fields, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        options(**fields)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda values: values.pop("data"), "the field 'data' is missing"),
        (lambda values: values["model"].pop("name"), "the field 'name' is missing"),
        (lambda values: values.update(colour="red"), "colour"),
        (lambda values: values.update(epochs=0), "epochs: must be at least 1, got 0"),
        (lambda values: values.update(epochs="2"), "epochs: must be of type int, got '2'"),
        (lambda values: values["data"].update(siz=64), "data.siz: no such field; did you mean size?"),
        (lambda values: values["data"].update(laboratories=["pbc", 3]), "data.laboratories: must be of type tuple"),
        (lambda values: values.update(epochs=True), "epochs: must be of type int, got True"),
        (lambda values: values["loss"].update(name="margn"), "did you mean margin"),
        (
            lambda values: values["model"]["routing"].update(iterations=2.5),
            "routing.iterations: must be of type int, got 2.5",
        ),
        (lambda values: values.update(augment=3), "not a recipe of this version of capsella"),
        (lambda values: values["loss"].update(weight=1), "weight"),
        (lambda values: values["model"]["routing"].update(name="dynamc"), "did you mean dynamic?"),
        (lambda values: values["model"]["routing"].update(iteration=2), "did you mean iterations?"),
        (lambda values: values["data"].update(size=-1), "size: must be from 1 to 4096, as --size 64, got -1"),
    ],
)
@pytest.mark.usefixtures("as_users_call")
def test_a_damaged_recipe_is_named(change, text):
    values = get_recipe("demo").to_dict()
    change(values)
    with pytest.raises(CapsellaError) as error:
        Recipe.from_dict(values)
    assert text in str(error.value)
    assert str(error.value).startswith("not a recipe of this version of capsella: ")


def test_the_learning_rate_decays_smoothly():
    options = OptimizerOptions(learning_rate=0.5, decay=0.25, decay_steps=10)
    assert [options.rate_at(step, 100) for step in (0, 5, 10, 20)] == pytest.approx([0.5, 0.25, 0.125, 0.03125])
    assert OptimizerOptions(learning_rate=0.5, decay=1.0).rate_at(10**6, 10**7) == 0.5
    floored = dataclasses.replace(options, least_rate=0.1)
    assert [floored.rate_at(step, 100) for step in (10, 20)] == pytest.approx([0.125, 0.1])
    with pytest.raises(ValueError, match="least_rate: must not be negative, got -1"):
        dataclasses.replace(options, least_rate=-1.0)


def test_efficient_capsnet_learns_as_its_authors_had_it():
    """Their rate falls to a tenth and stays there."""
    optimizer = get_recipe("mazzia2021-mnist").optimizer
    rates = [optimizer.rate_at(epoch * 3375, 150 * 3375) for epoch in (0, 1, 75, 76, 149)]
    assert rates == pytest.approx([5e-4, 4.85e-4, 5e-4 * 0.97**75, 5e-5, 5e-5])


def test_cifar10_of_sabour_routes_to_none_of_the_above_too():
    """§7: a part that no class explains need not be explained."""
    assert get_recipe("sabour2017-cifar10").model.options["routing"].leaky


def test_a_recipe_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        get_recipe("demo").epochs = 1
    assert get_recipe("demo").with_model(routing=UniformRouting()).epochs == 12


def test_recipes_of_the_thesis():
    """§8: batches of 5, 100,000 steps, nothing done to the training images; the loss and rate of each family."""
    names = [name for name in list_recipes() if name.startswith("forslov2018-") and not name.endswith("-modern")]
    assert len(names) == 14
    for name in names:
        recipe = get_recipe(name)
        assert recipe.model.name == name.replace("-", "_")
        assert (recipe.data.name, recipe.data.size, recipe.data.channels) == ("pbc", 224, 3)
        assert (recipe.batch_size, recipe.epochs * math.ceil(1503 / 5)) == (5, 100_233)
        assert recipe.augment == AugmentOptions()
        assert recipe.optimizer.l2 > 0
        family = name.split("-")[1][:-1]
        assert recipe.loss.name == {"capsnet": "margin", "emnet": "spread", "cnnnet": "cross_entropy"}[family]
        assert recipe.model.options.get("reconstruction") == {"capsnet": True, "emnet": False, "cnnnet": None}[family]
        if family != "cnnnet":
            assert (recipe.loss.reconstruction, recipe.loss.reconstruction_weight) == ("mean", 0.392)
        if family == "emnet":
            assert recipe.optimizer.learning_rate == 3e-4
            assert [round(recipe.loss.spread_at(step, 10**5), 1) for step in (0, 3000, 10**5)] == [0.2, 0.3, 0.9]


def test_modern_recipes_train_the_thesis_s_networks_another_way():
    names = [name for name in list_recipes() if name.startswith("forslov2018-") and name.endswith("-modern")]
    assert len(names) == 14
    for name in names:
        modern, published = get_recipe(name), get_recipe(name.removesuffix("-modern"))
        assert modern.model.name == published.model.name
        assert modern.model.options["batch_norm"]
        assert (modern.data, modern.loss.name, modern.augment.flip) == (published.data, published.loss.name, True)
        assert modern.optimizer.rate_at(2500, 2500) == pytest.approx(modern.optimizer.learning_rate / 10)
        with torch.device("meta"):
            create_model(modern.model.name, **modern.model.options, image_size=224, channels=3)


def test_what_a_machine_decides_is_no_part_of_a_recipe():
    """Recipes once had these fields: a run of that time is of the same recipe."""
    recipe = get_recipe("demo")
    values = {**recipe.to_dict(), "accelerator": "cuda", "devices": 4, "checkpoint_seconds": 5.0}
    assert Recipe.from_dict(values) == recipe


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_says_what_it_is(name):
    assert len(recipe_summary(name)) > 20
    assert recipe_group(name) in {
        *("sabour2017", "hinton2018", "mazzia2021", "forslov2018", "hahn2019", "tsai2020", "zhao2021"),
        *("ribeiro2020", "heinsen2019", "own_images", "league"),
    }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"primary_typs": 3}, "option of model 'sabour2017_capsnet': must be a registered name, got 'primary_typs'"),
        ({"class_weight_sd": "0.1"}, "model.class_weight_sd: must be of type float, got '0.1'"),
        ({"reconstruction": "false"}, "model.reconstruction: must be of type bool, got 'false'"),
    ],
)
def test_options_of_a_network_that_were_written_by_hand(tmp_path, options, text):
    values = get_recipe("sabour2017-mnist").to_dict()
    values["model"] |= options
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"recipe": values}))
    with pytest.raises(CapsellaError, match=re.escape(f"{file}: {text}")):
        read_recipe(file)


def test_a_routing_that_nobody_could_read_back_is_refused_before_training():
    class Own(DynamicRouting):
        """Without a name of its own, saved files would name its parent."""

    with pytest.raises(ValueError, match="routing: must be registered, by @register_routing, to be saved"):
        get_recipe("demo").with_model(routing=Own())


def test_a_routing_whose_options_json_changes_is_refused_before_training(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Own(DynamicRouting):
        name = "own"
        rates: list[float] | None = None

    monkeypatch.setitem(ROUTINGS, "own", Own)
    assert get_recipe("demo").with_model(routing=Own()).model.options["routing"] == Own()
    with pytest.raises(ValueError, match="rates: must be of type"):
        get_recipe("demo").with_model(routing=Own(rates=[1.0]))
