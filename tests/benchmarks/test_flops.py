import torch

from benchmarks.cases import CAPSNET1, DIGITS, EM_CONV1_ALL, SMALL
from benchmarks.flops import peak_flops
from benchmarks.ops import without_capsules


def test_votes_are_counted_by_hand() -> None:
    """EM: 36 sites · 288 children · 32 parents · 16 elements, each 8 + 3·6 + 2·4. Dense: 1152·10·16, each 16 + 5·2."""
    assert EM_CONV1_ALL.flops(EM_CONV1_ALL.inputs(1), training=False) == 36 * 288 * 32 * 16 * 34
    assert DIGITS.flops(DIGITS.inputs(2), training=True) == 3 * 2 * 1152 * 10 * 16 * 26


def test_tied_routing_counts_no_votes() -> None:
    """Five passes of Σ c u over 2304 children 8-D and 15 parents, and of 64·15 weights 8×96."""
    assert CAPSNET1.flops(CAPSNET1.inputs(1), training=False) == 5 * 2 * (2304 * 15 * 8 + 64 * 15 * 8 * 96)


def test_networks_add_convolutions_and_capsule_layers() -> None:
    convolutions = 2 * (14 * 14 * 64 * 25 + 14 * 14 * 64 * 8 * 17)
    capsules = (36 * 72 * 16 + 16 * 144 * 16 + 256 * 5) * 16 * 34
    assert SMALL.flops(SMALL.inputs(3), training=False) == 3 * (convolutions + capsules)


def test_the_bare_network_shares_the_weights_and_trains_the_convolutions() -> None:
    model = SMALL.module(SMALL.routing)
    bare = without_capsules(model)
    outputs = SMALL.backward(bare, SMALL.inputs(1))
    assert outputs["poses"].shape == (1, 1, 1, 5, 16)
    assert model.primary.conv.weight.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in model.capsule_layers.parameters())


def test_the_peak_is_that_of_some_machine() -> None:
    assert 1e8 < peak_flops(torch.device("cpu"), seconds=0.01) < 1e14
