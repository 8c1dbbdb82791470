"""A new routing is a class that is registered, and nothing elsewhere: every part takes it by its kind."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from capsella.evaluation.attacks.log_odds import has_class_capsules, vote_log_odds
from capsella.models import create_model
from capsella.papers.league.fields import FIELDS, entrants
from capsella.routing import ROUTINGS, Routed, Routing, UniformRouting
from capsella.routing.base import register_routing
from capsella.training.registry import get_recipe


@pytest.fixture(params=["lengths", "shares", "none"])
def kind(request, monkeypatch):
    """Of the activations of a routing that has just been registered under the name "new"."""
    monkeypatch.setattr("capsella.routing.base.ROUTINGS", ROUTINGS)
    monkeypatch.setitem(ROUTINGS, "new", UniformRouting)  # taken away again afterwards

    @register_routing
    @dataclass(frozen=True)
    class NewRouting(Routing):
        """The first child alone counts, for the first parent most."""

        name: ClassVar[str] = "new"
        activation_kind: ClassVar = request.param

        def route(self, votes, activations, **parameters):
            batch, children, parents, _ = votes.shape
            share = (torch.arange(parents, 0, -1) / (parents * (parents + 1) / 2)).expand(batch, children, parents)
            gone = activations.mean(1, keepdim=True) * share[:, 0]
            return Routed(votes[:, 0], gone / gone.sum(1, keepdim=True), share)

    assert ROUTINGS["new"] is NewRouting
    return request.param


def test_it_is_a_row_of_the_league(kind):
    for field in FIELDS:
        rows = [row for row in entrants(field, field.sources[0], "small") if row.label[1] == "new"]
        assert [type(row.recipe.model.options["routing"]) for row in rows] == [ROUTINGS["new"]]
        assert rows[0].recipe.loss.name == ("margin" if kind == "lengths" else "cross_entropy")


@pytest.mark.parametrize("network", ["league_capsnet", "hahn2019_convnet", "tsai2020_resnet"])
def test_networks_take_it_by_name(kind, network):
    if kind == "none" and network == "hahn2019_convnet":
        with pytest.raises(ValueError, match="routing: must be one with activations, got 'new'"):
            create_model(network, routing={"name": "new"})
        return
    model = create_model(network, image_size=32, channels=1, classes=3, routing={"name": "new"}).eval()
    images = torch.rand(2, 1, 32, 32)
    assert model(images).activations.shape == (2, 3)
    assert has_class_capsules(model) == (kind == "lengths")
    if kind == "lengths":
        assert vote_log_odds(model, images).shape == (2, 3)


def test_recipes_take_it_by_name(kind):
    recipe = get_recipe("league-smallnorb")
    named = replace(recipe, model=recipe.model.with_routing("new"))
    assert type(named.model.options["routing"]) is ROUTINGS["new"]


def test_one_that_is_not_registered_is_not_saved(tmp_path):
    """Else the file could not be read back."""

    class Mine(UniformRouting):
        name = "mine"

    model = create_model("hinton2018_matrix_capsnet_small", image_size=17, routing=Mine())
    with pytest.raises(ValueError, match="routing: must be registered, by @register_routing, to be saved"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
