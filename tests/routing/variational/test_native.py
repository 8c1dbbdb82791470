"""The operator of the variational C++ kernels, and a layer of them; tests/routing/test_mixture_native.py compares."""

import pytest
import torch

from capsella import _native
from capsella.layers import CapsuleConv2d
from capsella.routing import CapsuleConv, VariationalRouting
from capsella.routing.mixture import first_arguments
from capsella.types import Capsules
from tests.routing.helpers import CONV, LAYERS, asking, error

pytestmark = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))


@pytest.mark.usefixtures("as_users_call")
def test_the_operator_keeps_torch_s_contract() -> None:
    from capsella.routing.variational.native import Call, _variational_capsule_conv

    layer = LAYERS["4×4 poses"]
    tensors = asking(layer.tensors(), torch.float32, without=["vote_offset"])
    conv = CapsuleConv(**{key: tensors[key] for key in CONV}, geometry=layer.geometry)
    arguments = first_arguments(conv, torch.zeros(1, layer.parents[0], requires_grad=True))
    call = Call(
        **arguments, iterations=3, proportions=False, concentration=1.0, mean_weight=1.0, precision=1.0, degrees=2.0
    )
    torch.library.opcheck(_variational_capsule_conv, tuple(call))


def test_a_layer_with_batch_normalisation_takes_the_kernels() -> None:
    layer = CapsuleConv2d(2, 16, 3, 16, 2, pose="matrix", norm="batch", routing=VariationalRouting(backend="native"))
    children = Capsules(torch.randn(2, 4, 4, 2, 16), torch.rand(2, 4, 4, 2))
    native = layer(children)
    layer.routing = VariationalRouting(backend="eager")
    for ours, theirs in zip(native, layer(children), strict=True):
        assert error(ours, theirs) < 1e-3  # dividing by small standard deviations magnifies what was rounded
