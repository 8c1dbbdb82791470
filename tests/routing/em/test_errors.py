"""Every ValueError: argument, rule, and what was received."""

import dataclasses
import re
from inspect import signature
from typing import Any

import pytest
import torch

from capsella.layers import CapsuleConv2d
from capsella.routing import CapsuleConv, EMRouting, Geometry, em_routing, routing_from_dict
from capsella.routing.em.settings import EMSettings
from tests.routing.helpers import Layer

pytestmark = pytest.mark.usefixtures("as_users_call")
GOOD: dict[str, Any] = {
    "votes": torch.randn(2, 5, 3, 4),
    "activations": torch.rand(2, 5),
    "beta_u": torch.zeros(3),
    "beta_a": torch.zeros(3),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"votes": torch.randn(5, 3, 4)}, "votes: must have the four axes [b i j d], got 3 axes"),
        ({"votes": torch.ones(2, 5, 3, 4, dtype=torch.int64)}, "votes: must be floating point, got torch.int64"),
        ({"activations": torch.rand(2, 3)}, "activations: must have shape [b i] = (2, 5), got (2, 3)"),
        ({"beta_u": torch.zeros(5)}, "beta_u: must have shape [j] = (3,), got (5,)"),
        ({"beta_a": torch.zeros(1)}, "beta_a: must have shape [j] = (3,), got (1,)"),
        ({"iterations": 0}, "iterations: must be a whole number of at least 1, got 0"),
        ({"inverse_temperature": 0.0}, "inverse_temperature: must be above 0, got 0.0"),
        ({"early_sharpness": 0.0}, "early_sharpness: must be above 0 and at most 1, got 0.0"),
        ({"early_sharpness": 2.0}, "early_sharpness: must be above 0 and at most 1, got 2.0"),
        ({"inverse_temperature_decay": 1.0}, "inverse_temperature_decay: must be in [0, 1), got 1.0"),
        ({"variance_floor": 0.0}, "variance_floor: must be above 0, got 0.0"),
        ({"cost_scale": -1.0}, "cost_scale: must be above 0 or None, got -1.0"),
        ({"start": "zero"}, "start: must be 'even' or 'random', got 'zero'"),
        ({"start_seed": -1}, "start_seed: must not be negative, got -1"),
        ({"backend": "cuda"}, "backend: must be 'auto' or one of ['eager', 'reference'] for this routing, got 'cuda'"),
    ],
)
def test_em_routing(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        em_routing(**(GOOD | change))


def test_competition() -> None:
    with pytest.raises(ValueError, match="competition: must be 'all' or 'types', got 'none'"):
        routing_from_dict({"name": "em", "competition": "none"})


def test_beta_a_scale() -> None:
    with pytest.raises(ValueError, match="beta_a_scale: must be above 0 or None, got 0"):
        EMRouting(beta_a_scale=0)


@pytest.mark.parametrize(("p", "d"), [(8, 8), (16, 9), (1, 4)])
def test_matrix_poses_must_be_square(p: int, d: int) -> None:
    message = r"pose: matrix poses must have the same square number of elements .* in children and parents, got "
    with pytest.raises(ValueError, match=message + f"{p} and {d}"):
        CapsuleConv2d(2, p, 3, d, 3, pose="matrix")


def test_unknown_pose() -> None:
    with pytest.raises(ValueError, match="pose: must be 'vector' or 'matrix', got 'tensor'"):
        CapsuleConv2d(2, 4, 3, 4, 3, pose="tensor")  # type: ignore[arg-type]


def test_vote_offset_of_another_grid() -> None:
    geometry = Geometry((2, 2), matrix=True)
    poses, activations, weight = torch.randn(1, 3, 3, 2, 4), torch.rand(1, 3, 3, 2), torch.randn(2, 2, 2, 3, 2, 2)
    with pytest.raises(ValueError, match=re.escape("vote_offset: must have shape [h w d] = (3, 3, 4), got (2, 2, 4)")):
        CapsuleConv(poses, activations, weight, geometry, torch.zeros(2, 2, 4))


@pytest.mark.parametrize("competition", ["all", "types"])
@pytest.mark.parametrize("backend", ["auto", "eager", "reference"])
def test_betas_of_another_layer(competition: Any, backend: Any) -> None:
    tensors = Layer(1, (3, 3), Geometry((2, 2), matrix=True), (2, 4), (3, 4)).tensors()
    conv = CapsuleConv(**tensors, geometry=Geometry((2, 2), matrix=True))
    with pytest.raises(ValueError, match=re.escape("beta_a: must have shape [j] = (3,), got (1,)")):
        EMRouting(competition=competition, backend=backend).capsule_conv(
            conv, beta_u=torch.zeros(3), beta_a=torch.zeros(1)
        )


def test_the_function_has_the_defaults_of_the_options() -> None:
    defaults = {name: parameter.default for name, parameter in signature(em_routing).parameters.items()}
    assert {field.name: defaults[field.name] for field in dataclasses.fields(EMSettings)} == vars(EMSettings())


def test_options_survive_the_journey_through_json() -> None:
    routing = EMRouting(
        iterations=2, competition="types", cost_scale=100.0, standardise_costs=True, early_sharpness=0.5
    )
    assert routing_from_dict(routing.to_dict()) == routing
