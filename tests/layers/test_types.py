"""What the operators of the kernels refuse: other types than float32, and sizes of other arrays."""

from dataclasses import replace

import pytest
import torch

from capsella.errors import ArgumentError
from capsella.layers import DenseCapsules
from capsella.routing import EMRouting, RoutingInputs
from capsella.routing.backends import kernel_shape
from capsella.types import Capsules


def layer_and_inputs() -> tuple[DenseCapsules, RoutingInputs]:
    layer = DenseCapsules((2, 2), 3, 4, 5, 4, routing=EMRouting(backend="native"))
    return layer, layer.routing_inputs(Capsules(torch.randn(2, 2, 2, 3, 4), torch.rand(2, 2, 2, 3)))


def test_native_kernels_take_float32_alone() -> None:
    """Neither the layer nor the operator itself reads or fills a copy."""
    layer, conv = layer_and_inputs()
    wide = replace(conv, weight=conv.weight.double())
    with pytest.raises(ValueError, match=r"^backend: 'native' cannot run here"):
        layer.routing.route_windows(wide, **layer.routing_parameters)
    with pytest.raises(ArgumentError, match=r"^weight: must"):
        layer.routing._route_native(wide, tuple(layer.routing_parameters.values()))


def test_their_operators_take_sizes_of_their_arrays_alone() -> None:
    sizes = layer_and_inputs()[1].shape
    kernel_shape(list(sizes))
    for wrong in ({"rows": 3}, {"stride_height": 0}, {"c_in": 0}, {"e": 300}):
        with pytest.raises(ArgumentError) as error:
            kernel_shape(list(sizes._replace(**wrong)))
        assert error.value.argument == "sizes"
