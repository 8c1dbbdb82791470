"""Second derivatives of what has a backward pass of its own: right, and not silently 0."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from capsella.layers.large_kernels import LargeConv2d
from capsella.routing import em_routing, heinsen_routing, variational_routing


def em(V: Tensor, backend: str) -> Tensor:
    return em_routing(V, torch.full(V.shape[:2], 0.6).to(V), *torch.zeros(2, V.shape[2]).to(V), backend=backend).poses


def variational(V: Tensor, backend: str) -> Tensor:
    bias = torch.zeros(V.shape[2]).to(V)
    return variational_routing(V, torch.full(V.shape[:2], 0.6).to(V), bias, backend=backend).poses


def heinsen(V: Tensor, backend: str) -> Tensor:
    bias = torch.full((2, V.shape[1], V.shape[2]), 0.1).to(V)
    return heinsen_routing(V, torch.full(V.shape[:2], 0.6).to(V), *bias, backend=backend).poses


def second(function: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(x**2).square().sum(), x, create_graph=True)
    return torch.autograd.grad((slope * direction).sum(), x)[0]


@pytest.mark.parametrize("route", [em, variational, heinsen])
def test_eager_has_those_of_the_reference(route) -> None:
    torch.manual_seed(0)
    votes, direction = torch.randn(2, 2, 6, 3, 4, dtype=torch.float64)
    found, expected = (second(lambda V, b=backend: route(V, b), votes, direction) for backend in ("eager", "reference"))
    torch.testing.assert_close(found, expected)


def test_large_convolutions_have_those_of_pytorch() -> None:
    torch.manual_seed(0)
    layer, images = LargeConv2d(128, 128, 11), torch.randn(8, 128, 28, 28, requires_grad=True)
    found = []
    for training in (True, False):
        layer.train(training).zero_grad()
        (slope,) = torch.autograd.grad(layer(images.tanh()).sum(), images, create_graph=True)
        slope.square().mean().backward()
        found.append(layer.weight.grad.clone())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)
