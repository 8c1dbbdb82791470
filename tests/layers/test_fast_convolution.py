"""Convolutions of large kernels: by tiles in float32, and gradients by matrices in bfloat16."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from capsella.layers import FastConv2d, fast_convolution
from capsella.layers.fast_convolution import TILES, StridedConvolution, best_tile, gradients_by_matrices_pay

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


def test_gradients_by_differences(tiled):
    tiled(5)
    layer = FastConv2d(2, 2, 4, 2, 1).double()
    images = torch.randn(2, 2, 7, 6, dtype=torch.float64, requires_grad=True)

    def convolve(images, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (images,))

    assert torch.autograd.gradcheck(convolve, (images, layer.weight, layer.bias))


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


def test_other_convolutions_stay_what_they_are(seen):
    images = torch.rand(64, 64, 12, 12)
    for name, value in (
        ("groups", 2),
        ("dilation", 2),
        ("padding_mode", "circular"),
        ("padding", "same"),
        ("padding", (1, 2)),
        ("stride", (1, 2)),
        ("kernel_size", (5, 4)),
    ):
        options = {"kernel_size": 5, name: value}
        layer, plain = FastConv2d(64, 64, **options), nn.Conv2d(64, 64, **options)
        plain.load_state_dict(layer.state_dict())
        assert torch.equal(layer(images), plain(images))
    FastConv2d(64, 64, 5)(images[0])  # one image without a batch
    assert not seen


def gradients(convolve, images, weight, pull, **options):
    images, weight = images.detach().requires_grad_(), weight.detach().requires_grad_()
    out = convolve(images, weight, **options)
    return out, *torch.autograd.grad(out, (images, weight), pull)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [*SHAPES[1:], (2, 1, 1, 8, 8, 3, 4, 0)])
def test_gradients_by_matrices_are_those_of_the_convolution(shape, layout):
    batch, channels, maps, height, width, kernel, stride, padding = shape
    images = torch.randn(batch, channels, height, width, dtype=torch.float64).to(memory_format=layout)
    weight = torch.randn(maps, channels, kernel, kernel, dtype=torch.float64)
    pull = torch.randn_like(F.conv2d(images, weight, None, stride, padding))
    mine = gradients(lambda *given: StridedConvolution.apply(*given, None, stride, padding), images, weight, pull)
    theirs = gradients(F.conv2d, images, weight, pull, stride=stride, padding=padding)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)  # the gradient of images is summed in float32


def test_second_derivatives_of_gradients_by_matrices():
    images = torch.randn(2, 2, 7, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda *given: StridedConvolution.apply(*given, 2, 1), (images, weight, bias))


@pytest.fixture
def by_matrices(monkeypatch):
    """How often gradients by matrices were asked for."""
    calls, apply = [], StridedConvolution.apply
    monkeypatch.setattr(StridedConvolution, "apply", lambda *given: calls.append(given) or apply(*given))
    return calls


def test_gradients_are_about_as_near_to_the_exact_ones_as_pytorchs(by_matrices):
    layer = FastConv2d(128, 512, 9, 2)
    images, weight = torch.randn(8, 128, 13, 13).bfloat16(), layer.weight.detach().bfloat16()
    layer.weight.data = weight.float()
    pull = torch.randn(8, 512, 3, 3).bfloat16()
    exact = gradients(F.conv2d, images.double(), weight.double(), pull.double(), stride=2)[1:]
    theirs = gradients(F.conv2d, images, weight, pull, stride=2)[1:]
    plain = F.conv2d(images, weight, layer.bias.bfloat16(), 2)
    asked = images.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(asked)
    assert torch.equal(out, plain)
    assert len(by_matrices) == 1
    *mine, of_bias = torch.autograd.grad(out, (asked, layer.weight, layer.bias), pull)
    torch.testing.assert_close(of_bias, pull.float().sum((0, 2, 3)), rtol=1e-2, atol=1e-1)
    for ours, other, true, most in zip(mine, theirs, exact, (1.5, 1.01), strict=True):
        assert (ours - true).norm() < most * (other - true).norm()
        assert (ours - true).norm() < 3e-3 * true.norm()


def test_they_are_taken_where_they_pay(by_matrices, monkeypatch):
    kernel, small = (torch.empty(256, maps, 9, 9, requires_grad=True) for maps in (256, 128))
    assert not gradients_by_matrices_pay(torch.empty(16, 256, 20, 20), kernel.detach(), 2)
    assert gradients_by_matrices_pay(torch.empty(16, 256, 20, 20), kernel, 2)
    assert not gradients_by_matrices_pay(torch.empty(16, 256, 20, 20), kernel, 1)
    assert not gradients_by_matrices_pay(torch.empty(4, 256, 20, 20), kernel, 2)
    assert not gradients_by_matrices_pay(torch.empty(16, 128, 20, 20), small, 2)
    monkeypatch.setattr(fast_convolution, "LARGE", 1)
    layer, images = FastConv2d(4, 4, 5, 2), torch.rand(8, 4, 12, 12)
    layer(images)  # float32
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        layer(images)
    with torch.autocast("cpu", torch.bfloat16):
        layer.eval()(images)
    layer.train()
    with torch.autocast("cpu", torch.bfloat16):
        layer.double()(images.double())
    assert not by_matrices
    layer.bfloat16()(images.bfloat16())
    assert len(by_matrices) == 1
