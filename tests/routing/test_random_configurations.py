"""Random layers and options: the backward passes of all backends against the loops of the reference, in float64."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from capsella import _native
from capsella.routing import (
    DynamicRouting,
    EMRouting,
    Geometry,
    HeinsenRouting,
    InvertedAttentionRouting,
    Routing,
    RoutingInputs,
    SelfAttentionRouting,
    SelfRouting,
    VariationalRouting,
)
from tests.routing.helpers import Layer, asking, assert_close, error, gradients


def em(rng: random.Random, types: int) -> EMRouting:
    standardised = types >= 3 and rng.random() < 0.3
    return EMRouting(
        iterations=rng.randint(1, 4),
        inverse_temperature=5.0 if standardised else rng.choice([0.01, 0.2]),
        inverse_temperature_decay=rng.choice([0.0, 0.5, 0.95]),
        cost_scale=rng.choice([None, 20.0]),
        standardise_costs=standardised,
        early_likelihood_weight=rng.choice([1.0, 0.2]),
        start=rng.choice(["uniform", "random"]),
        competition=rng.choice(["all", "types"]),
        beta_a_scale=rng.choice([None, 3.0]),
    )


KINDS: dict[str, Callable[[random.Random, int], Routing]] = {
    "dynamic": lambda rng, _: DynamicRouting(
        iterations=rng.randint(1, 4), bias=rng.random() < 0.5, leaky=rng.random() < 0.5
    ),
    "em": em,
    "variational": lambda rng, _: VariationalRouting(
        rng.randint(1, 4), rng.random() < 0.5, *(rng.choice([0.5, 1.0, 3.0]) for _ in range(4)), bias=rng.random() < 0.5
    ),
    "heinsen": lambda rng, _: HeinsenRouting(
        rng.randint(1, 4), rng.choice([1e-5, 0.1]), shared=rng.random() < 0.5, bias=rng.random() < 0.5
    ),
    "self": lambda *_: SelfRouting(),
    "self-attention": lambda rng, _: SelfAttentionRouting(prior=rng.random() < 0.5),
    "inverted attention": lambda rng, _: InvertedAttentionRouting(rng.randint(1, 3)),
}


def draw(kind: str, seed: int) -> tuple[Routing, Layer]:
    """Return a routing and a layer of a few children, which the loops of the reference route in a second."""
    rng = random.Random(f"{kind} {seed}")
    kernel, matrix = (rng.randint(1, 2), rng.randint(1, 3)), rng.random() < 0.5
    grid = kernel[0] + rng.randint(0, 1), kernel[1] + rng.randint(0, 1)
    geometry = Geometry(kernel, (rng.randint(1, 2), 1), tied=rng.random() < 0.5, matrix=matrix)
    pose = (4, 4) if matrix else (rng.randint(1, 4), rng.randint(2, 5))
    types = rng.randint(1, 2), rng.randint(2, 4)
    return KINDS[kind](rng, types[1]), Layer(
        rng.randint(1, 2), grid, geometry, (types[0], pose[0]), (types[1], pose[1])
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_backward_passes_agree(kind: str, seed: int) -> None:
    routing, layer = draw(kind, seed)
    (c_in, p), (c_out, d), kernel = layer.children, layer.parents, layer.geometry.kernel
    generator = torch.Generator().manual_seed(seed)
    tensors = layer.tensors(0.5, generator)
    if layer.geometry.tied and kind == "dynamic":
        del tensors["vote_offset"]  # which the kernels of tied layers do not take
    of_layer = list(tensors)
    for name, shape in routing.parameter_shapes(c_out, d, kernel[0] * kernel[1] * c_in, p).items():
        tensors[f"routing {name}"] = 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)

    def run(backend: Any, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
        mine = asking(tensors, dtype, without=["vote_offset"])
        inputs = RoutingInputs(**{name: mine[name] for name in of_layer}, geometry=layer.geometry)
        parameters = {name.removeprefix("routing "): mine[name] for name in mine if name not in of_layer}
        out = list(replace(routing, backend=backend).route_windows(inputs, **parameters))  # type: ignore[type-var]
        asked = [tensor for tensor in mine.values() if tensor.requires_grad]
        return [*out, *gradients(out, asked, unused=True)]  # some routings do not use the children's activations

    exact = run("reference")
    assert_close(run("eager"), exact, rtol=1e-6, atol=1e-7)
    if _native.kernels is not None:
        for ours, theirs, truth in zip(run("native", torch.float32), run("eager", torch.float32), exact, strict=True):
            rounding = (ours.double() - truth).abs().max() < 1e-6  # of what is 0
            assert rounding or error(ours, truth) < max(1e-4, 20 * error(theirs, truth))
