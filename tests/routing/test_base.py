import pytest
import torch

from capsella.routing import (
    ROUTINGS,
    DynamicRouting,
    RandomRouting,
    SelfAttentionRouting,
    UniformRouting,
    routing_from_dict,
)

OPTIONS = [
    DynamicRouting(iterations=2, bias=True, leaky=True),
    UniformRouting(),
    RandomRouting(seed=7),
    SelfAttentionRouting(prior=False),
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


def test_route_is_the_function() -> None:
    votes, activations = torch.randn(2, 5, 3, 4), torch.rand(2, 5)
    for routing in ROUTINGS.values():
        options = routing()
        shapes = options.parameter_shapes(types=3, pose=4, children=5)
        routed = options.route(votes, activations, **{name: torch.zeros(shape) for name, shape in shapes.items()})
        assert routed.poses.shape == (2, 3, 4)
        assert routed.activations.shape == (2, 3)
        assert routed.couplings.shape == (2, 5, 3)
