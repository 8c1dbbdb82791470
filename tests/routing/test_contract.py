"""Every routing function: eager against the reference in float64, permutations, extremes, traces and refusals."""

from typing import Any

import pytest
import torch

from capsella.routing import record
from tests.routing.cases import CASES, FIXED, PRIORS
from tests.routing.helpers import assert_close, gradients, same_bits

SIZES = [(1, 1, 1, 1), (2, 5, 3, 7), (1, 11, 2, 1), (1, 3, 1, 5), (2, 1, 5, 3)]  # b, i, j, d
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
    ("em", "inverse_temperature_decay", 1.0),
    ("em", "start", "zero"),
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
