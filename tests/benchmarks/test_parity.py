import math

import torch

from benchmarks.cases import SMALL
from benchmarks.contenders import PLAIN
from benchmarks.parity import Parity, parity

CPU = torch.device("cpu")


def test_eager_agrees_with_itself_in_every_tensor(em, dense, good):
    for op, tensors in ((em, 9), (dense, 7)):
        rows = parity(op, 2, good, CPU)
        assert len(rows) == tensors
        assert all(row.agrees and row.error == row.eager_error for row in rows)


def test_another_implementation_agrees(em, dense):
    for op in (em, dense):
        assert all(row.agrees for row in parity(op, 2, PLAIN, CPU))


def test_a_small_mistake_is_red(em, broken):
    """One per cent in λ: poses hardly show it, activations and their parameters' gradients do."""
    red = {row.tensor for row in parity(em, 2, broken, CPU) if not row.agrees}
    assert {
        "activations",
        "activations without gradients",
        "gradient of routing's beta_a",
        "gradient of routing's beta_u",
    } <= red


def test_networks_are_judged_layer_by_layer(good):
    rows = parity(SMALL, 1, good, CPU)
    assert {row.layer for row in rows} == {f"matrix-capsnet-small.capsule_layers.{k}" for k in range(3)}
    assert all(row.agrees for row in rows)


def test_errors_are_relative_to_eager_and_nan_is_red():
    assert Parity("", "", error=5e-7, eager_error=0.0).agrees
    assert Parity("", "", error=3e-4, eager_error=1e-4).agrees
    assert not Parity("", "", error=5e-4, eager_error=1e-4).agrees
    assert not Parity("", "", error=math.nan, eager_error=1e-4).agrees
