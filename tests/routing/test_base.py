import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from capsella.routing import (
    ROUTINGS,
    DynamicRouting,
    EMRouting,
    HeinsenRouting,
    InvertedAttentionRouting,
    RandomRouting,
    Routing,
    SelfAttentionRouting,
    SelfRouting,
    UniformRouting,
    VariationalRouting,
    routing_from_dict,
)

OPTIONS = [
    DynamicRouting(iterations=2, bias=True, leaky=True),
    UniformRouting(),
    RandomRouting(seed=7),
    SelfAttentionRouting(prior=False),
    SelfRouting(backend="eager"),
    InvertedAttentionRouting(iterations=3),
]


@pytest.mark.parametrize("routing", OPTIONS)
def test_options_survive_json(routing: DynamicRouting) -> None:
    assert routing_from_dict(routing.to_dict()) == routing
    assert ROUTINGS[routing.to_dict()["name"]] is type(routing)


def test_unknown_routing_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"routing: must be a registered name, got 'dynamik'; did you mean dynamic\?"):
        routing_from_dict({"name": "dynamik"})


def test_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"option of routing 'dynamic': .* got 'iteration'; did you mean iterations\?"):
        routing_from_dict({"name": "dynamic", "iteration": 2})


@pytest.mark.parametrize(
    ("routing", "typo", "meant"),
    [
        (EMRouting, "variance_flor", "variance_floor"),
        (DynamicRouting, "iteration", "iterations"),
        (RandomRouting, "sed", "seed"),
        (VariationalRouting, "proportion", "proportions"),
        (HeinsenRouting, "share", "shared"),
        (SelfAttentionRouting, "pryor", "prior"),
        (SelfRouting, "backed", "backend"),
        (InvertedAttentionRouting, "iteration", "iterations"),
    ],
)
def test_a_misspelt_option_suggests_the_nearest(routing: type[Routing], typo: str, meant: str) -> None:
    message = rf"option of routing '{routing.name}': must be a registered name, got '{typo}'; did you mean .*{meant}"
    with pytest.raises(ValueError, match=message):
        routing_from_dict({"name": routing.name, typo: 3})


def test_route_is_the_function() -> None:
    votes, activations = torch.randn(2, 5, 3, 4), torch.rand(2, 5)
    for routing in ROUTINGS.values():
        options = routing()
        shapes = options.parameter_shapes(types=3, pose=4, children=5, child_pose=4)
        routed = options.route(votes, activations, **{name: torch.zeros(shape) for name, shape in shapes.items()})
        assert routed.poses.shape == (2, 3, 4)
        assert routed.activations.shape == (2, 3)
        assert routed.couplings.shape == (2, 5, 3)


def test_lists_of_json_become_tuples_again(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Many(DynamicRouting):
        name: ClassVar[str] = "many"
        rates: tuple[float, ...] = (1.0, 2.0)

    monkeypatch.setitem(ROUTINGS, "many", Many)
    assert routing_from_dict(json.loads(json.dumps(Many(rates=(0.5,)).to_dict()))) == Many(rates=(0.5,))
    with pytest.raises(ValueError, match=r"routing\.rates: must be of type tuple"):
        routing_from_dict({"name": "many", "rates": "1, 2"})
