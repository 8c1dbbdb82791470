"""Every routing function: eager against the reference in float64, permutations, extremes, traces and refusals."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from capsella.routing import (
    dynamic_routing,
    em_routing,
    heinsen_routing,
    inverted_attention_routing,
    random_routing,
    record,
    self_attention_routing,
    self_routing,
    uniform_routing,
    variational_routing,
)
from tests.routing.helpers import assert_close, gradients, same_bits

SIZES = [(1, 1, 1, 1), (2, 5, 3, 7), (1, 11, 2, 1), (1, 3, 1, 5), (2, 1, 5, 3)]  # b, i, j, d


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
    "em, soft first": Case(em_routing, EM, {"early_sharpness": 0.2, "inverse_temperature": 0.2, "iterations": 4}, 4),
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
every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_eager_is_the_reference(name: str) -> None:
    """Outputs and all gradients, for odd sizes."""
    case = CASES[name]
    for size in SIZES:
        tensors = case.inputs(*size)
        ours, expected = (case.smooth(case.run(tensors, backend=backend)) for backend in ("eager", "reference"))
        assert_close(ours, expected)
        inputs = list(tensors.values())
        assert_close(gradients(ours, inputs, unused=True), gradients(expected, inputs, unused=True))


@pytest.mark.parametrize("name", [*CASES, *FIXED])
def test_gradients_are_those_of_differences(name: str) -> None:
    case = {**CASES, **FIXED}[name]
    tensors = case.inputs(1, 3, 2, 3)
    assert torch.autograd.gradcheck(
        lambda *x: tuple(case.run(dict(zip(tensors, x, strict=True)))), tuple(tensors.values())
    )


@every_case
def test_permutations_batches_and_defaults(name: str) -> None:
    case = CASES[name]
    tensors = case.inputs(2, 5, 3, 4)
    routed = case.run(tensors, backend="eager")
    assert same_bits(case.run(tensors), routed)
    if case.shares:
        torch.testing.assert_close(routed.couplings.sum(2), torch.ones(2, 5, dtype=torch.float64))
    for backend in ("eager", "reference"):
        for batch in (0, 1):
            one = case.run(case.moved(tensors, "b", [1] * batch), backend=backend)
            assert_close(one, [part[1 : 1 + batch] for part in routed])
    if "random" in name:  # whose couplings belong to places
        return
    children, parents = [3, 0, 4, 2, 1], [2, 0, 1]
    moved = case.run(case.moved(tensors, "i", children))
    assert_close(moved, [routed.poses, routed.activations, routed.couplings[:, children]])
    moved = case.run(case.moved(tensors, "j", parents))
    assert_close(moved, [routed.poses[:, parents], routed.activations[:, parents], routed.couplings[..., parents]])


# Size, factor of the votes, and activations where they are not random.
EXTREMES: dict[str, tuple[tuple[int, int, int, int], float, float | None]] = {
    "no child active": ((2, 6, 3, 16), 1, 0.0),
    "all children active": ((2, 6, 3, 16), 1, 1.0),
    "no child active, huge votes": ((2, 6, 3, 16), 1e6, 0.0),
    "hardly active": ((2, 6, 3, 16), 1, 1e-30),
    "zero votes": ((2, 6, 3, 16), 0, None),
    "huge votes": ((2, 6, 3, 16), 1e6, None),
    "tiny votes": ((2, 6, 3, 16), 1e-20, None),
    "one child": ((2, 1, 3, 16), 1, None),
    "one parent": ((2, 6, 1, 16), 1, None),
    "one of each": ((2, 1, 1, 1), 1, 1.0),
    "identical huge votes": ((2, 6, 3, 16), 1e6, None),
    "one parent far away": ((2, 6, 3, 16), 1, None),
    "one outlier": ((2, 6, 3, 16), 1, None),
}


@pytest.mark.parametrize("name", [*CASES, *FIXED])
@pytest.mark.parametrize("extreme", EXTREMES)
def test_finite_results_and_gradients(name: str, extreme: str) -> None:
    case, (size, factor, active) = {**CASES, **FIXED}[name], EXTREMES[extreme]
    drawn = {key: x.detach() for key, x in case.inputs(*size, dtype=torch.float32).items()}
    drawn["votes"] *= factor
    if extreme == "identical huge votes":
        drawn["votes"] = drawn["votes"][:1, :1].repeat(2, 6, 1, 1)
    if extreme == "one parent far away":
        drawn["votes"][:, :, -1] += 1e6
    if extreme == "one outlier":
        drawn["votes"] *= (10.0 ** torch.arange(6))[:, None, None]
    if active is not None and "activations" in drawn:
        drawn["activations"].fill_(active)
    dtypes = [torch.float32, torch.bfloat16] if "activations" in drawn and "self" not in name else [torch.float32]
    for dtype in dtypes:
        short = {key: x.to(dtype) if key in ("votes", "activations") else x for key, x in drawn.items()}
        tensors = {key: x.clone().requires_grad_() for key, x in short.items()}
        routed = case.run(tensors)
        assert all(out.dtype == torch.float32 for out in routed)
        for tensor in (*routed, *gradients(routed, list(tensors.values()), unused=True)):
            assert tensor.isfinite().all()


@pytest.mark.parametrize("name", [*CASES, *FIXED])
def test_traces_end_with_the_result(name: str) -> None:
    case = {**CASES, **FIXED}[name]
    tensors = {key: x.detach() for key, x in case.inputs(2, 5, 3, 4).items()}
    with record() as traces:
        routed = case.run(tensors)
    (trace,) = traces
    assert trace.name == name.split(",")[0].replace(" ", "_").replace("-", "_")
    assert len(trace.couplings) == len(trace.poses) == len(trace.activations) == case.iterations
    assert same_bits([trace.poses[-1], trace.activations[-1], trace.couplings[-1]], routed)
    if trace.name in ("em", "heinsen", "variational"):
        votes = tensors["votes"] + (tensors["bias"] if trace.name == "heinsen" else 0)
        torch.testing.assert_close(trace.distances[-1], (votes - routed.poses.unsqueeze(1)).norm(dim=3))


WRONG: list[tuple[str, str, Any]] = [
    *((name, "votes", torch.randn(5, 3, 4)) for name in CASES if "," not in name),
    *((name, "votes", torch.ones(2, 5, 3, 4, dtype=torch.int64)) for name in ("dynamic", "random")),
    *((name, "votes", torch.randn(2, 0, 3, 4)) for name in ("dynamic", "uniform")),
    *((name, "activations", torch.rand(2, 3)) for name in ("em", "heinsen", "self", "variational")),
    *((name, "backend", "native") for name in CASES if "," not in name),
    *((name, "iterations", 0) for name in ("dynamic", "em", "heinsen", "inverted attention", "variational")),
    *(("dynamic, bias", "bias", torch.zeros(shape)) for shape in ((4,), (3, 1), (1, 3, 4))),
    ("em", "beta_u", torch.zeros(5)),
    ("em", "beta_a", torch.zeros(1)),
    ("em", "inverse_temperature", 0.0),
    ("em", "inverse_temperature_decay", 1.0),
    ("em", "early_sharpness", 0.0),
    ("em", "early_sharpness", 2.0),
    ("em", "variance_floor", 0.0),
    ("em", "cost_scale", -1.0),
    ("em", "start", "zero"),
    ("em", "start_seed", -1),
    ("heinsen", "beta_use", torch.zeros(3, 3)),
    ("heinsen", "beta_ignore", torch.zeros(1, 4)),
    ("heinsen", "bias", torch.zeros(5, 3, 3)),
    ("heinsen", "epsilon", 0.0),
    ("inverted attention", "scale", torch.zeros(3)),
    ("inverted attention", "shift", torch.zeros(1)),
    ("self", "logits", torch.zeros(3, 4)),
    ("self-attention, prior", "prior", torch.zeros(3, 5)),
    ("variational", "bias", torch.zeros(5)),
    *(("variational", option, 0.0) for option in PRIORS),
]


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(("name", "argument", "value"), WRONG)
def test_refusals_name_the_argument(name: str, argument: str, value: Any) -> None:
    case = {**CASES, **FIXED}[name]
    given = {**case.inputs(2, 5, 3, 4, dtype=torch.float32), **case.options, argument: value}
    with pytest.raises(ValueError, match=f"^{argument}: must"):
        case.route(**given)
