"""Routings as options: registered by name, saved as JSON, checked, traced in one graph; a new one is just a class."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import capsella
from capsella import create_model
from capsella.errors import ArgumentError
from capsella.evaluation.attacks import has_class_capsules, vote_log_odds
from capsella.layers import DenseCapsules
from capsella.routing import (
    ROUTINGS,
    DynamicRouting,
    EMRouting,
    HeinsenRouting,
    InvertedAttentionRouting,
    RandomRouting,
    Routed,
    Routing,
    SelfAttentionRouting,
    SelfRouting,
    UniformRouting,
    VariationalRouting,
    routing_from_dict,
)
from capsella.routing.base import register_routing

OPTIONS: list[Routing] = [
    DynamicRouting(iterations=2, bias=True, leaky=True),
    EMRouting(iterations=2, competition="types", cost_scale=100.0, standardise_costs=True, early_likelihood_weight=0.5),
    HeinsenRouting(2, epsilon=1e-3, shared=True, bias=False),
    InvertedAttentionRouting(iterations=3),
    RandomRouting(seed=7),
    SelfAttentionRouting(prior=False),
    SelfRouting(backend="eager"),
    UniformRouting(),
    VariationalRouting(2, proportions=False, mean_weight=0.5, bias=False),
]


def test_options_survive_json() -> None:
    assert {routing.name for routing in OPTIONS} == set(ROUTINGS)
    for routing in OPTIONS:
        assert routing_from_dict(json.loads(json.dumps(routing.to_dict()))) == routing


@pytest.mark.parametrize(
    ("saved", "got", "meant"),
    [({"name": "dynamik"}, "dynamik", "dynamic"), ({"name": "em", "variance_flor": 1.0}, "variance_flor", "variance_")],
)
def test_the_nearest_name_is_suggested(saved: dict[str, Any], got: str, meant: str) -> None:
    with pytest.raises(ArgumentError) as error:
        routing_from_dict(saved)
    assert error.value.got == got
    assert meant in error.value.hint


@pytest.mark.usefixtures("as_users_call")
def test_refusals_name_the_argument() -> None:
    for name, kind in ROUTINGS.items():
        for iterations in (0, 2.5, "3", True) if "iterations" in kind.__dataclass_fields__ else ():
            with pytest.raises(ArgumentError) as error:
                ROUTINGS[name](iterations=iterations)
            assert (error.value.argument, error.value.got) == ("iterations", iterations)
    with pytest.raises(ArgumentError) as error:
        DenseCapsules((2, 2), 3, 4, 5, 4, routing="em")  # type: ignore[arg-type]
    assert (error.value.argument, error.value.got) == ("routing", "em")


# In a process of its own, as the annotation checks of the tests cannot be traced. aot_eager traces forward and backward
# as every other backend does, and spares the half minute in which the default one compiles C++.
COMPILED = """
import torch
from capsella.layers import CapsuleConv2d
from capsella.routing import ROUTINGS
from capsella.types import Capsules

for name, routing in sorted(ROUTINGS.items()):
    torch.compiler.reset()
    torch.manual_seed(0)
    layer = CapsuleConv2d(2, 4, 3, 4, kernel=(2, 1), routing=routing())
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    children = Capsules(torch.randn(2, 3, 2, 2, 4), torch.rand(2, 3, 2, 2))
    results = []
    for run in (layer, compiled):
        layer.zero_grad()
        out = run(children)
        (out.poses.pow(3).sum() + out.activations.sum()).backward()
        results.append((out.poses, out.activations, layer.weight.grad))
    torch.testing.assert_close(*results)
    print(name)
"""


@pytest.mark.slow
def test_compiled_layers_agree() -> None:
    root = Path(capsella.__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", COMPILED], cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == sorted(ROUTINGS)


@pytest.fixture(params=["lengths", "shares", "none"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The activations of a routing that has just been registered under the name "new"."""
    monkeypatch.setitem(ROUTINGS, "new", UniformRouting)  # taken away again afterwards
    with pytest.raises(ArgumentError) as error:
        register_routing(type("Other", (UniformRouting,), {"name": "new"}))
    assert (error.value.argument, error.value.got, "UniformRouting" in error.value.rule) == ("name", "new", True)
    del ROUTINGS["new"]

    @register_routing
    @dataclass(frozen=True)
    class NewRouting(Routing):
        """Routes by the first child alone, most of it to the first parent."""

        name: ClassVar[str] = "new"
        activation_kind: ClassVar = request.param

        def route(self, votes: torch.Tensor, activations: torch.Tensor, **parameters: torch.Tensor) -> Routed:
            batch, children, parents, _ = votes.shape
            share = (torch.arange(parents, 0, -1) / (parents * (parents + 1) / 2)).expand(batch, children, parents)
            gone = activations.mean(1, keepdim=True) * share[:, 0]
            return Routed(votes[:, 0], gone / gone.sum(1, keepdim=True), share)

    assert ROUTINGS["new"] is NewRouting
    return str(request.param)


@pytest.mark.parametrize("network", ["benchmark_capsnet", "hahn2019_convnet", "tsai2020_resnet"])
def test_networks_take_a_new_routing_by_name(kind: str, network: str) -> None:
    if kind == "none" and network == "hahn2019_convnet":
        with pytest.raises(ValueError, match=r"^routing: must"):
            create_model(network, routing={"name": "new"})
        return
    model = create_model(network, image_size=32, channels=1, classes=3, routing={"name": "new"}).eval()
    images = torch.rand(2, 1, 32, 32)
    assert model(images).activations.shape == (2, 3)
    assert has_class_capsules(model) == (kind == "lengths")
    if kind == "lengths":
        assert vote_log_odds(model, images).shape == (2, 3)


def test_a_routing_that_is_not_registered_is_not_saved(tmp_path: Path) -> None:
    """The file could not be read back."""

    class Mine(UniformRouting):
        name = "mine"

    model = create_model("hinton2018_matrix_capsnet_small", image_size=17, routing=Mine())
    with pytest.raises(ValueError, match=r"^routing: must"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
