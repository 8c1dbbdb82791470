"""Random capsule layers: a case is drawn from the seed and its number alone, which a finding names."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from capsella.routing import ROUTINGS, Geometry, Routing
from tests.routing.helpers import Layer

PARAMETER = "routing."
SETTINGS: dict[str, dict[str, list[Any]]] = {
    "dynamic": {"iterations": [1, 2, 3, 5], "bias": [False, True], "leaky": [False, True]},
    "em": {
        "iterations": [1, 2, 3, 4],
        "competition": ["all", "types"],
        "inverse_temperature": [0.01, 0.01, 1.0],
        "cost_scale": [None, 1.0, 100.0],
        "standardise_costs": [False, False, True],
        "early_likelihood_weight": [1.0, 0.1],
        "start": ["uniform", "random"],
        "variance_floor": [1e-4, 1e-8, 0.5],
        "beta_a_scale": [None, None, 5000.0],
        "votes": ["float32", "float32", "bfloat16"],
    },
    "heinsen": {"iterations": [1, 2, 3], "shared": [False, True], "bias": [False, True]},
    "variational": {"iterations": [1, 2, 3], "proportions": [True, False]},
    "self_attention": {"prior": [False, True]},
    "self": {},
    "inverted_attention": {"iterations": [1, 2, 3]},
    "uniform": {},
    "random": {"seed": [0, 7]},
}


@dataclass(frozen=True)
class Case:
    """A layer, its routing and its inputs in float64; `what` says them in a line."""

    routing: Routing
    layer: Layer
    tensors: dict[str, Tensor]
    what: str


def draw(seed: int, number: int) -> Case:
    """The case of this number."""
    rng = random.Random(f"{seed} {number}")
    name = rng.choice(sorted(ROUTINGS))
    layer = draw_layer(rng)
    options = {option: rng.choice(values) for option, values in SETTINGS[name].items()}
    if options.get("standardise_costs") and layer.parents[0] < 3:
        options["standardise_costs"] = False
    if options.get("standardise_costs"):
        options["inverse_temperature"] = 20.0
    if options.get("beta_a_scale"):  # as its authors pair it; else its gradients are what a million rounds
        options["inverse_temperature"] = 0.01
    routing = ROUTINGS[name](**options)
    scale, poses, activations = rng.choice(SCALES), rng.choice(list(POSES)), rng.choice(list(ACTIVATIONS))
    tensors = tensors_of(routing, layer, torch.Generator().manual_seed(number), rng.choice([0.1, 1.0]))
    tensors["poses"] = scale * POSES[poses](tensors["poses"])
    tensors["activations"] = ACTIVATIONS[activations](tensors["activations"])
    if rng.random() < 0.6:
        del tensors["vote_offset"]
    what = f"{routing} {layer} poses {scale:.0e}·{poses}, activations {activations}"
    # As a user's float32 layer has them: all backends start from the same bits.
    return Case(routing, layer, {key: value.float().double() for key, value in tensors.items()}, what)


def tensors_of(
    routing: Routing, layer: Layer, generator: torch.Generator, weight_scale: float = 1.0
) -> dict[str, Tensor]:
    """Children, weight and offset, and what the routing learns, a little away from where it starts."""
    tensors = layer.tensors(weight_scale, generator)
    children = layer.geometry.kernel[0] * layer.geometry.kernel[1] * layer.children[0]
    first = routing.init_parameters(layer.parents[0], layer.parents[1], children, layer.children[1])
    for key, value in first.items():
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        tensors[PARAMETER + key] = value.double() + 0.1 * noise
    return tensors


SCALES = [1e-30, 1e-20, 1e-10, 1e-4, 1.0, 1.0, 1.0, 10.0, 1e3, 1e6, 1e10, 1e15, 1e20, 1e30]
POSES = {
    "normal": lambda x: x,
    "zeros": torch.zeros_like,
    "equal": lambda x: x[:1, :1, :1, :1].expand_as(x).clone(),
    "one large": lambda x: x * (1.0 + 1e3 * (torch.arange(x.numel()).reshape(x.shape) == 0)),
    "half zeros": lambda x: x * (torch.arange(x.shape[3]) % 2)[:, None],
    "mostly 1e-30": lambda x: torch.where(torch.arange(x.shape[3])[:, None] == 0, x, 1e-30 * x),
}
ACTIVATIONS = {
    "random": lambda a: a,
    "0": torch.zeros_like,
    "1": torch.ones_like,
    "0 or 1": torch.round,
    "1e-30": lambda a: torch.full_like(a, 1e-30),
    "nearly 1": lambda a: 1 - 1e-7 * a,
}


def draw_layer(rng: random.Random) -> Layer:
    """A small layer of any geometry: every kernel path has its widths."""
    kernel = rng.choice([(1, 1), (2, 2), (3, 3), (1, 3), (2, 1), (4, 4)])
    grid = tuple(k + rng.choice([0, 0, 1, 2, 4]) for k in kernel)
    matrix = rng.random() < 0.5
    children, parents = rng.choice([1, 2, 3, 8]), rng.choice([1, 2, 3, 5, 10, 17, 33])
    p = rng.choice([1, 4, 9, 16] if matrix else [1, 2, 5, 8, 16])
    d = p if matrix else rng.choice([1, 3, 8, 16])
    stride = (rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2]))
    geometry = Geometry(kernel, stride, tied=rng.random() < 0.3, matrix=matrix)
    return Layer(rng.choice([1, 1, 2, 3]), grid, geometry, (children, p), (parents, d))
