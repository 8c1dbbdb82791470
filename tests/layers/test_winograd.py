"""3×3 convolutions by Winograd's kernels, on each instruction set."""

import pytest
import torch
from torch.nn import functional as F

from capsella import _native
from capsella.layers import FastConv2d
from capsella.layers.fast_convolution import WinogradConvolution, _array, _sizes, winograd_pays
from tests.routing.conftest import instruction_set, threads  # noqa: F401  fixtures
from tests.routing.helpers import error, on_each_set, same_bits

pytestmark = pytest.mark.skipif(
    not hasattr(_native.kernels, "winograd_forward"), reason="the kernels here have no Winograd convolution"
)
# batch, channels, out channels, height, width, padding
SHAPES = [
    (3, 32, 64, 30, 30, 0),
    (2, 16, 48, 7, 9, 1),
    (2, 16, 16, 8, 8, 2),
    (5, 48, 16, 13, 10, 1),
    (1, 16, 32, 5, 6, 0),
]


def inputs(shape):
    batch, channels, out_channels, height, width, _ = shape
    torch.manual_seed(0)
    maps = torch.randn(batch, channels, height, width).relu().to(memory_format=torch.channels_last)
    return maps, torch.randn(out_channels, channels, 3, 3) / (9 * channels) ** 0.5, torch.randn(out_channels)


def run(convolve, tensors, padding, dtype=torch.float32):
    """Output, and gradients of maps, weight and bias."""
    given = [tensor.to(dtype).requires_grad_() for tensor in tensors]
    out = convolve(*given, padding)
    return out, *torch.autograd.grad(out, given, out.detach().cos())


def direct(maps, weight, bias, padding):
    return F.conv2d(maps, weight, bias, padding=padding)


@on_each_set()
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_convolution(shape):
    tensors, padding = inputs(shape), shape[5]
    ours = run(WinogradConvolution.apply, tensors, padding)
    assert ours[0].is_contiguous(memory_format=torch.channels_last)
    for mine, truth in zip(ours, run(direct, tensors, padding, torch.float64), strict=True):
        assert mine.shape == truth.shape
        assert error(mine, truth) < 5e-5


def test_the_number_of_threads_changes_no_bit(threads):  # noqa: F811
    maps, weight, bias = inputs(SHAPES[0])
    sizes = _native.kernels.Maps(**_sizes(maps, len(weight), 0))
    results = []
    for number in (1, 2, 3):
        threads(number)
        out = WinogradConvolution.apply(maps, weight, bias, 0)
        gradient = torch.empty(36, *weight.shape[1::-1])
        _native.kernels.winograd_weights(sizes, _array(maps), _array(out), gradient, threads=number)
        results.append([out, gradient])
    assert all(same_bits(result, results[0]) for result in results[1:])


def test_second_derivatives_are_those_of_pytorch():
    maps, weight, _ = inputs((1, 16, 16, 6, 6, 0))

    def second(convolve):
        given = [maps.clone().requires_grad_(), weight.clone().requires_grad_()]
        first = torch.autograd.grad(convolve(*given, None, 0).square().sum(), given, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), given)

    for mine, theirs in zip(second(WinogradConvolution.apply), second(direct), strict=True):
        assert error(mine, theirs) < 1e-4


def test_what_is_not_a_number_is_not_hidden():
    maps, weight, bias = inputs(SHAPES[0])
    maps[0, 0, 10, 10] = float("nan")
    assert WinogradConvolution.apply(maps, weight, bias, 0)[0, :, 8:11, 8:11].isnan().all()


def test_it_is_taken_where_it_pays():
    maps, weight, _ = inputs(SHAPES[0])
    assert winograd_pays(maps, weight, 1, 0)
    for other, kernel, stride in (
        (maps.contiguous(), weight, 1),
        (maps, weight, 2),
        (maps[:, :, :4, :5].to(memory_format=torch.channels_last), weight, 1),
        (maps, weight[:40], 1),
        (maps, weight.repeat(1, 1, 2, 2), 1),
    ):
        assert not winograd_pays(other, kernel, stride, 0)
    layer = FastConv2d(32, 64, 3)
    plain = F.conv2d(maps, layer.weight, layer.bias)
    assert not torch.equal(layer(maps), plain)
    assert torch.equal(layer.eval()(maps), plain)
