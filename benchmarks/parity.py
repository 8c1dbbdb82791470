"""No speed-up counts where the results are wrong: fused kernels against the eager backend in float64, the judge.

Every capsule layer of an op is asked the same problem; in a network, with the children and gradients that reach it
there. Outputs with and without gradients, and the gradient of every input and parameter, must be as near to the judge
as the eager backend is in float32, but for a factor.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.contenders import Contender, backend, to_device
from benchmarks.ops import Op, Problem, follow_back
from capsella.routing import CapsuleConv, Routing

FACTOR = 4.0
"""How much farther from the judge than float32 eager: another order of summation, no other formula."""
FLOOR = 1e-6
"""A relative error of some units in the last place of float32 is none."""


class Parity(NamedTuple):
    """One tensor of one layer. Errors are ‖x − judge‖ / ‖judge‖."""

    layer: str
    tensor: str
    error: float
    eager_error: float

    @property
    def agrees(self) -> bool:
        """Near enough; not-a-number is not."""
        return self.error <= max(FACTOR * self.eager_error, FLOOR)


def parity(op: Op, batch: int, contender: Contender, device: torch.device) -> list[Parity]:
    """Compare a contender with the judge, tensor by tensor.

    Raises:
        ValueError: the contender has no such backend here ("backend: …").
    """
    rows = []
    for problem in op.problems(op.inputs(batch)):
        judge = solve(problem, backend("eager")(op.routing), torch.float64, device)
        eager = solve(problem, backend("eager")(op.routing), torch.float32, device)
        ours = solve(problem, contender.routing(op.routing), torch.float32, device)
        rows += [
            Parity(problem.name, name, _error(ours[name], judge[name]), _error(eager[name], judge[name]))
            for name in judge
        ]
    return rows


def solve(problem: Problem, routing: Routing, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Outputs and gradients of a layer with another routing, by name."""
    layer = problem.layer
    learned = {f"routing's {name}": tensor for name, tensor in layer.routing_parameters.items()}
    parameters = {"weight": layer.weight, **learned}
    inputs = {"children's poses": problem.children.poses, "children's activations": problem.children.activations}
    asked = {
        name: tensor.detach().to(device, dtype).requires_grad_() for name, tensor in {**inputs, **parameters}.items()
    }
    poses, activations, weight, *rest = asked.values()
    offset = None if layer.vote_offset is None else layer.vote_offset.to(device, dtype)
    options = dict(zip(layer.routing_parameters, rest, strict=True))

    def outputs() -> tuple[Tensor, ...]:
        conv = CapsuleConv(poses, activations, weight, layer.geometry, offset)
        return tuple(routing.capsule_conv(conv, **options))

    with torch.no_grad():
        alone = outputs()
    parents = outputs()
    upstream = [gradient.to(dtype) for gradient in to_device(tuple(problem.gradients), device)]
    follow_back(parents, upstream)
    results = dict(zip(("poses", "activations"), parents, strict=True))
    results |= {f"{name} without gradients": x for name, x in zip(results, alone, strict=True)}
    results |= {f"gradient of {name}": torch.zeros_like(x) if x.grad is None else x.grad for name, x in asked.items()}
    return {name: tensor.detach() for name, tensor in results.items()}


def _error(ours: Tensor, judge: Tensor) -> float:
    """‖x − judge‖ / ‖judge‖, or ‖x‖ where the judge is zero."""
    size = float(judge.norm())
    distance = float((ours.double() - judge).norm())
    return distance / size if size > 0 else distance
