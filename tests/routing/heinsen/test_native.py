"""The operator of Heinsen's C++ kernels; tests/routing/test_mixture_native.py compares what they compute."""

import pytest
import torch

from capsella import _native
from capsella.routing import CapsuleConv, HeinsenRouting
from capsella.routing.mixture import first_arguments
from tests.routing.helpers import CONV, LAYERS, asking

pytestmark = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))


@pytest.mark.usefixtures("as_users_call")
def test_the_operator_keeps_torch_s_contract() -> None:
    from capsella.routing.heinsen.native import Call, _heinsen_capsule_conv

    layer = LAYERS["4×4 poses"]
    shapes = HeinsenRouting().parameter_shapes(5, 16, 27, 16)
    given = layer.tensors() | {key: torch.zeros(shape) for key, shape in shapes.items()}
    tensors = asking(given, torch.float32, without=["vote_offset"])
    conv = CapsuleConv(**{key: tensors[key] for key in CONV}, geometry=layer.geometry)
    betas = torch.cat([tensors["beta_use"], tensors["beta_ignore"]])
    arguments = first_arguments(conv, betas.detach().requires_grad_(), tensors["bias"])
    torch.library.opcheck(_heinsen_capsule_conv, tuple(Call(**arguments, iterations=3, epsilon=1e-5, shared=False)))
