"""Every routing function with the axes of its inputs and its options."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from capsella.routing import (
    dynamic_routing,
    em_routing,
    heinsen_routing,
    inverted_attention_routing,
    random_routing,
    self_attention_routing,
    self_routing,
    uniform_routing,
    variational_routing,
)


class Case(NamedTuple):
    """A routing function, the axes of its inputs beside the votes [b i j d], and its options."""

    route: Callable[..., Any]
    axes: dict[str, str]
    options: dict[str, Any]
    iterations: int = 1  # that leave a trace
    shares: bool = True  # couplings sum to 1 over the parents

    def inputs(self, *size: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """Random tensors that ask for gradients; activations are in [0, 1]."""
        length = dict(zip("bijd", size, strict=True))
        tensors = {}
        for name, axes in {"votes": "bijd", **self.axes}.items():
            draw = torch.rand if name == "activations" else torch.randn
            tensors[name] = draw([length[axis] for axis in axes], dtype=dtype).requires_grad_()
        return tensors

    def run(self, inputs: dict[str, Tensor], **options: Any) -> Any:
        return self.route(**inputs, **self.options, **options)

    def moved(self, inputs: dict[str, Tensor], axis: str, order: list[int]) -> dict[str, Tensor]:
        """Detached inputs of which `order` picks the entries along an axis."""
        axes, picked = {"votes": "bijd", **self.axes}, torch.tensor(order, dtype=torch.int64)
        return {
            name: x.detach().index_select(axes[name].index(axis), picked) if axis in axes[name] else x.detach()
            for name, x in inputs.items()
        }

    def smooth(self, routed: Any) -> list[Tensor]:
        """Results to compare; lengths are squared, because ε shows in the gradient of those below about 1e-4."""
        lengths = self.route in (dynamic_routing, self_attention_routing)
        return [routed.poses, routed.activations.square() if lengths else routed.activations, routed.couplings]


EM = {"activations": "bi", "beta_u": "j", "beta_a": "j"}
HEINSEN = {"activations": "bi", "beta_use": "ij", "beta_ignore": "ij", "bias": "ijd"}
VARIATIONAL = {"activations": "bi", "bias": "j"}
PRIORS = {"concentration": 0.5, "mean_weight": 3.0, "precision": 4.0, "degrees": 0.7}
CASES = {
    "dynamic": Case(dynamic_routing, {}, {}, 3),
    "dynamic, bias": Case(dynamic_routing, {"bias": "jd"}, {"iterations": 4}, 4),
    "dynamic, leaky": Case(dynamic_routing, {"bias": "jd"}, {"leaky": True, "iterations": 2}, 2, False),
    "em": Case(em_routing, EM, {}, 3),
    "em, one iteration": Case(em_routing, EM, {"iterations": 1}, 1),
    "em, warm": Case(em_routing, EM, {"inverse_temperature": 1.0, "inverse_temperature_decay": 0.5}, 3),
    "em, scaled": Case(em_routing, EM, {"cost_scale": 5.0, "inverse_temperature": 0.2}, 3),
    "em, standardised": Case(em_routing, EM, {"standardise_costs": True, "inverse_temperature": 20.0}, 3),
    "em, random start": Case(em_routing, EM, {"start": "random", "start_seed": 3, "inverse_temperature": 0.2}, 3),
    "em, soft first": Case(
        em_routing, EM, {"early_likelihood_weight": 0.2, "inverse_temperature": 0.2, "iterations": 4}, 4
    ),
    "heinsen": Case(heinsen_routing, HEINSEN, {"epsilon": 0.01}, 3),
    "inverted attention": Case(inverted_attention_routing, {"scale": "d", "shift": "d"}, {}, 2),
    "inverted attention, 3 rounds": Case(
        inverted_attention_routing, {"scale": "d", "shift": "d"}, {"iterations": 3}, 3
    ),
    "self": Case(self_routing, {"activations": "bi", "logits": "bij"}, {}),
    "self-attention": Case(self_attention_routing, {}, {}),
    "self-attention, prior": Case(self_attention_routing, {"prior": "ij"}, {}),
    "variational": Case(variational_routing, VARIATIONAL, {}, 3),
    "variational, authors' code": Case(variational_routing, VARIATIONAL, {"proportions": False}, 3, False),
    "variational, other priors": Case(variational_routing, VARIATIONAL, PRIORS, 3),
}
FIXED = {"random": Case(random_routing, {}, {}), "uniform": Case(uniform_routing, {}, {})}
