import pytest
import torch
from torch.nn import functional as F

from capsella.layers import LargeConv2d, strided_kernels
from capsella.layers.strided_kernels import StridedConvolution, gradients_by_matrices_pay

# batch, channels, maps, height, width, kernel, stride, padding
SHAPES = [(3, 2, 5, 20, 17, 9, 2, 0), (1, 4, 3, 9, 14, 5, 1, 2), (2, 2, 2, 23, 16, 7, 3, 1), (2, 1, 1, 8, 8, 3, 4, 0)]


def gradients(convolve, images, weight, pull, **options):
    images, weight = images.detach().requires_grad_(), weight.detach().requires_grad_()
    out = convolve(images, weight, **options)
    return out, *torch.autograd.grad(out, (images, weight), pull)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_convolution(shape, layout):
    batch, channels, maps, height, width, kernel, stride, padding = shape
    images = torch.randn(batch, channels, height, width, dtype=torch.float64).to(memory_format=layout)
    weight = torch.randn(maps, channels, kernel, kernel, dtype=torch.float64)
    pull = torch.randn_like(F.conv2d(images, weight, None, stride, padding))
    mine = gradients(lambda *given: StridedConvolution.apply(*given, None, stride, padding), images, weight, pull)
    theirs = gradients(F.conv2d, images, weight, pull, stride=stride, padding=padding)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)  # the gradient of images is summed in float32


def test_second_derivatives():
    images = torch.randn(2, 2, 7, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda *given: StridedConvolution.apply(*given, 2, 1), (images, weight, bias))


def test_only_what_needs_a_gradient_gets_one():
    images, weight = torch.rand(2, 1, 8, 8), torch.rand(2, 1, 5, 5, requires_grad=True)
    StridedConvolution.apply(images, weight, None, 2, 0).sum().backward()
    assert weight.grad is not None
    assert images.grad is None
    weight = weight.detach()
    images.requires_grad_()
    StridedConvolution.apply(images, weight, None, 2, 0).sum().backward()
    assert images.grad is not None
    assert weight.grad is None


@pytest.fixture
def seen(monkeypatch):
    """How often gradients by matrices were asked for."""
    calls, apply = [], StridedConvolution.apply
    monkeypatch.setattr(StridedConvolution, "apply", lambda *given: calls.append(given) or apply(*given))
    return calls


def test_gradients_are_about_as_near_to_the_exact_ones_as_pytorchs(seen):
    layer = LargeConv2d(128, 512, 9, 2)
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
    assert len(seen) == 1
    *mine, of_bias = torch.autograd.grad(out, (asked, layer.weight, layer.bias), pull)
    torch.testing.assert_close(of_bias, pull.float().sum((0, 2, 3)), rtol=1e-2, atol=1e-1)
    for one, other, true, most in zip(mine, theirs, exact, (1.5, 1.01), strict=True):
        assert (one - true).norm() < most * (other - true).norm()
        assert (one - true).norm() < 3e-3 * true.norm()


def test_they_are_taken_where_they_pay(seen, monkeypatch):
    kernel, small = (torch.empty(256, maps, 9, 9, requires_grad=True) for maps in (256, 128))
    assert not gradients_by_matrices_pay(torch.empty(16, 256, 20, 20), kernel.detach(), 2)
    assert gradients_by_matrices_pay(torch.empty(16, 256, 20, 20), kernel, 2)
    assert not gradients_by_matrices_pay(torch.empty(16, 256, 20, 20), kernel, 1)
    assert not gradients_by_matrices_pay(torch.empty(4, 256, 20, 20), kernel, 2)
    assert not gradients_by_matrices_pay(torch.empty(16, 128, 20, 20), small, 2)
    monkeypatch.setattr(strided_kernels, "LARGE", 1)
    layer, images = LargeConv2d(4, 4, 5, 2), torch.rand(8, 4, 12, 12)
    layer(images)  # float32
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        layer(images)
    with torch.autocast("cpu", torch.bfloat16):
        layer.eval()(images)
    layer.train()
    with torch.autocast("cpu", torch.bfloat16):
        layer.double()(images.double())
    assert not seen
    layer.bfloat16()(images.bfloat16())
    assert len(seen) == 1
