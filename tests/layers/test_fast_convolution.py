"""Convolutions of large kernels by tiles in float32."""

import pytest
import torch
from torch.nn import functional as F

from capsella.layers import FastConv2d, fast_convolution
from capsella.layers.fast_convolution import TILES, best_tile

# batch, channels, maps, height, width, kernel, stride, padding
SHAPES = [(2, 3, 4, 11, 11, 5, 1, 0), (3, 2, 5, 20, 17, 9, 2, 0), (1, 4, 3, 9, 14, 5, 1, 2), (2, 2, 2, 23, 16, 7, 3, 1)]


def run(layer, images, pull):
    """Output, and gradients of images, weight and bias."""
    images = images.clone().requires_grad_()
    out = layer(images)
    return out, *torch.autograd.grad(out, (images, layer.weight, layer.bias), pull)


@pytest.fixture
def tiled(monkeypatch):
    """Tiles of this many rows, in any dtype, whatever they cost."""

    def use(tile):
        def apply(images, weight, bias, stride, padding):
            out = fast_convolution._TiledConvolution.apply(images, weight, stride, padding, tile)
            return out if bias is None else out + bias[:, None, None]

        monkeypatch.setattr(fast_convolution, "fast_conv2d", apply)

    return use


@pytest.mark.parametrize(
    ("tile", "shape"), [*zip((5, 6, 9, 16), SHAPES, strict=True), *zip((9, 5, 16, 6), SHAPES, strict=True)]
)
def test_it_is_the_convolution(shape, tile, tiled):
    batch, channels, maps, height, width, kernel, stride, padding = shape
    layer = FastConv2d(channels, maps, kernel, stride, padding).double()
    images = torch.randn(batch, channels, height, width, dtype=torch.float64)
    plain = F.conv2d(images, layer.weight, layer.bias, stride, padding)
    pull = torch.randn_like(plain)
    expected = run(layer, images, pull)
    tiled(tile)
    for mine, theirs in zip(run(layer, images, pull), expected, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-11)
    last = torch.channels_last
    mine = run(layer, images.to(memory_format=last), pull.to(memory_format=last))
    assert mine[0].is_contiguous(memory_format=last)
    for other, theirs in zip(mine, expected, strict=True):
        torch.testing.assert_close(other, theirs, rtol=1e-10, atol=1e-11)


def test_second_derivatives():
    images = torch.randn(2, 2, 9, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    apply = fast_convolution._TiledConvolution.apply
    assert torch.autograd.gradgradcheck(lambda *given: apply(*given, 2, 1, 6), (images, weight))


@pytest.fixture
def seen(monkeypatch):
    """How often tiles were used."""
    calls = []
    apply = fast_convolution._TiledConvolution.apply
    monkeypatch.setattr(
        fast_convolution._TiledConvolution, "apply", lambda *given: calls.append(given) or apply(*given)
    )
    return calls


def test_it_is_as_near_to_the_exact_result_as_a_direct_convolution(seen):
    torch.manual_seed(0)
    layer = FastConv2d(256, 256, 9, 2)
    images = torch.randn(32, 256, 20, 20)
    exact = F.conv2d(images.double(), layer.weight.double(), layer.bias.double(), 2)
    tiled = layer(images)
    assert len(seen) == 1
    direct = layer.eval()(images)
    assert len(seen) == 1
    errors = [(out - exact).norm() / exact.norm() for out in (tiled, direct)]
    assert errors[0] < 2e-6
    assert errors[0] < 2 * errors[1]


def test_tiles_are_taken_where_they_pay():
    assert best_tile(64, 256, 256, 20, 20, 9, 2, 0) in TILES  # CapsNet's primary capsules
    assert best_tile(64, 256, 256, 24, 24, 5, 1, 2) in TILES  # the CNN of Sabour et al.
    assert best_tile(64, 1, 256, 28, 28, 9, 1, 0) is None
    assert best_tile(1, 256, 256, 20, 20, 9, 2, 0) is None
    assert best_tile(64, 256, 256, 20, 20, 3, 2, 0) is None
    assert best_tile(64, 64, 64, 3, 3, 5, 1, 0) is None  # no output


def test_only_trainings_in_float32_use_tiles(seen):
    layer, images = FastConv2d(64, 64, 5), torch.rand(64, 64, 12, 12)
    layer(images)
    assert len(seen) == 1
    with torch.autocast("cpu", torch.bfloat16):
        layer(images)
    with torch.no_grad():
        layer(images)
    layer.eval()(images)
    layer.train().double()(images.double())
    assert len(seen) == 1
