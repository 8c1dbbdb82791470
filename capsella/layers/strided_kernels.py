"""Gradients of strided convolutions of large kernels, in bfloat16 on a processor, by products of matrices."""

from itertools import product
from typing import Any

import torch
from torch import Tensor

from capsella.routing.backends import asks_second_derivative

LARGE = 4_000_000
"""Weights from which on PyTorch's gradients of such a convolution take two to four times as long as these."""
FEWEST = 8
"""Images below which these gain nothing."""


def gradients_by_matrices_pay(images: Tensor, weight: Tensor, stride: int) -> bool:
    """Whether `StridedConvolution` is the quicker one: measured on a core with AMX, of 32 to 512 maps."""
    asked = images.requires_grad or weight.requires_grad
    return asked and stride > 1 and weight.numel() >= LARGE and len(images) >= FEWEST


class StridedConvolution(torch.autograd.Function):
    """`torch.nn.functional.conv2d` of bfloat16, whose gradients are a product of matrices for each tap of the kernel.

    images [b c h w], weight [out c k k], bias [out] or None, stride, padding → [b out rows columns]. The gradient of
    images is a sum in float32 of products that are rounded to bfloat16: its own rounding error is up to one and a half
    times PyTorch's. That of the kernel is as near to the exact one as PyTorch's.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        """Convolve."""
        ctx.save_for_backward(images, weight)
        ctx.stride, ctx.padding = stride, padding
        return torch.nn.functional.conv2d(images, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        """Of the slopes [b out rows columns], the gradients of images, weight and bias."""
        images, weight = ctx.saved_tensors
        of_bias = slope.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        if asks_second_derivative():
            return *usual_gradients(ctx, slope, images, weight), of_bias, None, None
        size = slope.shape[-2:]
        slopes = slope.permute(2, 3, 0, 1).reshape(-1, len(weight))
        of_images = of_weight = None
        if ctx.needs_input_grad[0]:
            of_images = _of_images(slopes, size, images, weight, ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            of_weight = _of_weight(slopes, size, images, weight, ctx.stride, ctx.padding)
        return of_images, of_weight, of_bias, None, None


def usual_gradients(ctx: Any, slope: Tensor, images: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of images and weight by PyTorch's own convolution, which has further derivatives."""
    asked = [*ctx.needs_input_grad[:2], False]
    stride, padding = [ctx.stride] * 2, [ctx.padding] * 2
    of_images, of_weight, _ = torch.ops.aten.convolution_backward(
        slope, images, weight, None, stride, padding, [1, 1], False, [0, 0], 1, asked
    )
    return of_images, of_weight


def _of_images(slopes: Tensor, size: torch.Size, images: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Slopes [rows·columns·b out] times each row of taps, added to the places which that row has seen."""
    (batch, channels, height, width), (maps, _, kernel, _) = images.shape, weight.shape
    taps = weight.permute(2, 0, 3, 1).reshape(kernel, maps, kernel * channels)
    out = slopes.new_zeros(height + 2 * padding, width + 2 * padding, batch, channels, dtype=torch.float32)
    for row in range(kernel):
        pulled = torch.mm(slopes, taps[row]).view(*size, batch, kernel, channels)
        for column in range(kernel):
            out[_seen((row, column), size, stride)] += pulled[:, :, :, column]
    inside = out[padding : padding + height, padding : padding + width]
    return inside.permute(2, 3, 0, 1).to(images.dtype).contiguous()


def _of_weight(slopes: Tensor, size: torch.Size, images: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """For each tap slopes [rows·columns·b out] times the numbers which that tap has seen [rows·columns·b c]."""
    maps, channels, kernel, _ = weight.shape
    padded = torch.nn.functional.pad(images, (padding,) * 4).permute(2, 3, 0, 1).contiguous()
    out = weight.new_empty(kernel, kernel, maps, channels)
    for row, column in product(range(kernel), repeat=2):
        numbers = padded[_seen((row, column), size, stride)].reshape(-1, channels)
        torch.mm(slopes.T, numbers, out=out[row, column])
    return out.permute(2, 3, 0, 1).contiguous()


def _seen(tap: tuple[int, int], size: torch.Size, stride: int) -> tuple[slice, slice]:
    """Rows and columns of the padded images that a tap reads."""
    rows, columns = (slice(at, at + stride * (n - 1) + 1, stride) for at, n in zip(tap, size, strict=True))
    return rows, columns
