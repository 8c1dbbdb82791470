import dataclasses
import inspect
import re
import shlex
from pathlib import Path

import pytest
import tyro
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capsella.cli.flags import prepare
from capsella.cli.help_texts import plain_defaults
from capsella.cli.network_texts import option_texts
from capsella.cli.train import Train
from capsella.data import NamedData
from capsella.models import base, list_models, model_function
from capsella.papers import get_recipe, list_recipes
from capsella.ray_cluster import Place
from capsella.routing import ROUTINGS, DynamicRouting, UniformRouting
from capsella.training import ComputeOptions, ModelOptions
from capsella.training.recipes import train_command


def parse(line: str) -> Train:
    """What `capsella train …` would train."""
    _, _, name, *words = shlex.split(line)
    recipe, words = prepare(get_recipe(name), words, Train, ComputeOptions, Place)
    with plain_defaults():
        return tyro.cli(Train, default=Train(recipe), args=words)


def parsed(flags: str, name: str = "demo"):
    return parse(f"capsella train {name} {flags}").recipe


def test_the_end_of_a_name_is_enough_where_it_is_unique():
    assert parsed("--iterations 1").model.options["routing"].iterations == 1
    assert parsed("--iterations=1").model.options["routing"].iterations == 1
    assert parsed("--routing.iterations 1").model.options["routing"].iterations == 1
    assert parsed("--model.routing.iterations 1").model.options["routing"].iterations == 1
    assert parsed("--learning-rate 0.5").optimizer.learning_rate == 0.5
    assert parsed("--learning_rate 0.5").optimizer.learning_rate == 0.5
    assert parsed("--optimizer.learning-rate 0.5").optimizer.learning_rate == 0.5
    assert parsed("--per-class 7 --shift 0").data.per_class == 7
    assert parsed("--leaky").model.options["routing"].leaky is True
    assert parsed("--no-flip", "images-capsnet").augment.flip is False


def test_options_of_a_network_that_may_be_none():
    cut = parsed("--model hinton2018_cnn --crop 12 --size 20")
    assert cut.model.options["crop"] == 12
    assert parsed("--model=hinton2018_cnn --model.crop=12").model.options["crop"] == 12
    assert parsed("--model.crop None", "hinton2018-smallnorb").model.options["crop"] is None
    assert parsed("--class-weight-sd 0.5", "mazzia2021-mnist").model.options["class_weight_sd"] == 0.5
    assert parse(train_command("demo", cut)).recipe == cut
    with pytest.raises(SystemExit):
        parsed("--model.crop large", "hinton2018-smallnorb")


@pytest.mark.parametrize("name", list_models())
def test_every_option_of_a_network_has_a_text(name):
    texts = option_texts(name)
    assert list(texts) == list(inspect.signature(model_function(name)).parameters)
    assert all(texts.values())
    assert not [text for text in texts.values() if "as for" in text or re.search(r"\. \w+: ", text)]


def test_a_network_of_one_s_own_needs_no_texts_and_no_types(monkeypatch, capsys):
    def mine(*, image_size=(8, 8), channels=1, classes=("a", "b"), width: "int" = 3, deep=True):
        """A network of one's own."""

    monkeypatch.setitem(base._MODELS, "mine", mine)
    assert parsed("--model mine --width 5 --no-deep").model.options == {"width": 5, "deep": False}
    with pytest.raises(SystemExit):
        parsed("--model mine --help")
    assert "--model.width INT" in capsys.readouterr().out


def test_texts_of_another_network():
    assert option_texts("forslov2018_capsnet2_init2")["batch_norm"].startswith("batch normalisation between")
    assert option_texts("league_cnn")["image_size"] == option_texts("league_capsnet")["image_size"]
    assert "1×1" in option_texts("league_pooling")["image_size"]


def test_flags_that_are_no_fields_of_the_recipe():
    options = parse("capsella train demo --out my/run --seeds 3 --seed 5")
    assert (options.out, options.seeds, options.recipe.seed) == (Path("my/run"), 3, 5)
    options = parse("capsella train demo --threads 1 --checkpoint-seconds 9")
    assert (options.compute.threads, options.compute.checkpoint_seconds) == (1, 9)


def test_a_switch_and_a_field_of_the_same_name():
    assert parsed("--no-reconstruction").model.options["reconstruction"] is False
    with pytest.raises(
        ValueError, match=r"--reconstruction: must name one field, but could be --model\.reconstruction"
    ):
        parsed("--reconstruction sum")
    assert parsed("--loss.reconstruction mean").loss.reconstruction == "mean"


def test_a_group_stands_for_its_name():
    assert parsed("--loss spread").loss.name == "spread"
    assert parsed("--data mnist").data.name == "mnist"


def test_another_source_leaves_the_recipes_folder_behind():
    recipe = parsed("--data fashion-mnist --per-class 100", "images-efficient")
    assert recipe.data == NamedData("fashion-mnist", per_class=100, size=64)
    assert parsed("--data cells.npz", "images-efficient").data.path == Path("cells.npz")
    with pytest.raises(ValueError, match="--path"):
        parsed("--data pbc --path cells", "images-efficient")


def test_several_laboratories():
    recipe = parsed("--data lab-a/,lab-b/ --epochs 2", "images-cells-efficient")
    assert (recipe.data.domains, recipe.epochs) == (("lab-a/", "lab-b/"), 2)
    assert parse(train_command("images-cells-efficient", recipe)).recipe == recipe


def test_another_network_brings_its_options_and_its_loss():
    recipe = parsed("--model sabour2017_cnn --dropout 0.25")
    assert recipe.model == ModelOptions("sabour2017_cnn", {"dropout": 0.25})
    assert recipe.loss.name == "cross_entropy"
    assert parsed("--model sabour2017_cnn --loss margin").loss.name == "margin"
    back = parsed("--model sabour2017_capsnet", "images-cnn")
    assert back.loss.name == "margin"
    assert back.model.options["routing"] == DynamicRouting(iterations=3)
    assert parsed("--model sabour2017_capsnet --loss.name spread").loss.name == "spread"


def test_a_network_of_the_same_options_takes_them_as_the_recipe_has_them():
    small = get_recipe("matrix-capsnet-smallnorb").complete().model
    large = parsed("--model hinton2018_matrix_capsnet", "matrix-capsnet-smallnorb").model
    assert large == ModelOptions("hinton2018_matrix_capsnet", small.options)
    assert (large.options["routing"].iterations, large.options["crop"]) == (2, 32)
    emnet = parsed("--model forslov2018_emnet1_init1", "matrix-capsnet-smallnorb").model
    assert emnet.options["routing"].iterations == 3


def test_another_routing_brings_its_options():
    assert parsed("--routing uniform").model.options["routing"] == UniformRouting()
    assert parsed("--model.routing=uniform").model.options["routing"] == UniformRouting()
    assert parsed("--iterations 5 --routing dynamic").model.options["routing"] == DynamicRouting(iterations=5)
    with pytest.raises(ValueError, match="--iterations"):
        parsed("--routing uniform --iterations 2")


def test_the_command_tells_what_differs():
    recipe = get_recipe("demo")
    assert train_command("demo", recipe) == "capsella train demo"
    recipe = dataclasses.replace(recipe, epochs=3).with_model(reconstruction=False)
    assert train_command("demo", recipe) == "capsella train demo --model.no-reconstruction --epochs 3"
    recipe = dataclasses.replace(recipe, model=recipe.complete().model.with_routing("uniform"))
    assert train_command("demo", recipe).startswith("capsella train demo --routing uniform --model.no-reconstruction")
    assert train_command("mine", recipe) == "capsella train config.json"


def test_a_network_whose_default_differs_from_the_recipes_value():
    """The demo reconstructs and the matrix network does not; the command must say that this one does."""
    recipe = get_recipe("demo").with_network("hinton2018_matrix_capsnet_small")
    recipe = recipe.with_model(reconstruction=True)
    assert parse(train_command("demo", recipe)).recipe == recipe


texts = st.text(st.sampled_from("ab1 '\"$(-)=.é"), min_size=1).filter(lambda text: not text.startswith("-"))
overrides = st.fixed_dictionaries(
    {},
    optional={
        "epochs": st.integers(1, 99),
        "batch_size": st.integers(1, 99),
        "patience": st.none() | st.integers(1, 9),
        "seed": st.integers(0, 2**22 - 1),
        "deterministic": st.booleans(),
        "precision": st.sampled_from(["auto", "32-true", "bf16-mixed"]),
        "loss.name": st.sampled_from(["margin", "spread", "cross_entropy"]),
        "loss.reconstruction": st.sampled_from(["sum", "mean"]),
        "optimizer.learning_rate": st.floats(1e-9, 1e9),
        "optimizer.gradient_clip": st.none() | st.floats(1e-9, 1e9),
        "augment.shift": st.integers(0, 9),
        "augment.flip": st.booleans(),
        "data.size": st.none() | st.integers(1, 99),
        "data.channels": st.sampled_from([None, 1, 3]),
        "data.path": texts.map(Path),
    },
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(list_recipes()),
    network=st.none() | st.sampled_from(list_models()),
    routing=st.none() | st.sampled_from(sorted(ROUTINGS)),
    reconstruction=st.none() | st.booleans(),
    changes=overrides,
)
def test_a_command_parsed_gives_the_recipe_back(name, network, routing, reconstruction, changes):
    recipe = get_recipe(name).complete()
    if network is not None:
        recipe = recipe.with_network(network)
    if routing is not None and "routing" in recipe.model.options:
        recipe = dataclasses.replace(recipe, model=recipe.model.with_routing(routing))
    if reconstruction is not None and "reconstruction" in recipe.model.options:
        recipe = recipe.with_model(reconstruction=reconstruction)
    for path, value in changes.items():
        group, _, field = path.rpartition(".")
        if recipe.data.is_paired and (group == "augment" or path == "loss.name"):
            continue  # pairs are not augmented, and leave one loss for each kind of network
        if path == "patience" and recipe.keep == "last":
            continue  # a recipe that keeps the last epoch waits for none
        if path == "data.size" and recipe.data.cells != "whole":
            continue  # cropped cells need a size
        if path == "data.path":  # the group of a folder is a regular expression
            data = dataclasses.replace(recipe.data, group=None).on(f"{value}/")
            recipe = dataclasses.replace(recipe, data=data)
        elif group:
            recipe = dataclasses.replace(
                recipe, **{group: dataclasses.replace(getattr(recipe, group), **{field: value})}
            )
        else:
            recipe = dataclasses.replace(recipe, **{field: value})
    assert parse(train_command(name, recipe)).recipe == recipe
