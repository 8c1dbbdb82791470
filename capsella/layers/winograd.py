"""3×3 convolutions of maps stored channels last, by a third of the multiplications (C++ kernels of csrc/winograd.cpp).

This is Winograd's F(4×4, 3×3) (Lavin and Gray 2016, arXiv 1509.09308): tiles of 6×6 numbers are transformed to spectra,
where a convolution is an element-wise product.
"""

from typing import Any

import torch
from torch import Tensor

from capsella._native import kernels
from capsella.routing.functional import asks_second_derivative

CHANNELS = 16  # the kernels take only multiples of this many channels
SAVES = 1.6  # a direct convolution must need this many times the multiplications of the tiles
# From a kernel's three numbers along one axis to their spectrum at 0, ±1, ±2 and infinity.
_AXIS = torch.tensor(
    [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
     [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]],
    dtype=torch.float64,
)  # fmt: skip
_KERNEL = torch.kron(_AXIS, _AXIS).float()  # [36 9]


def winograd_pays(maps: Tensor, weight: Tensor, stride: int, padding: int) -> bool:
    """Return whether `WinogradConvolution` supports a convolution in float32 on the CPU, and is faster."""
    if not hasattr(kernels, "winograd_forward") or tuple(weight.shape[2:]) != (3, 3) or stride != 1 or padding > 2:
        return False
    rows, columns = (n + 2 * padding - 2 for n in maps.shape[2:])
    tiles = -(-rows // 4) * -(-columns // 4)
    return (
        maps.is_contiguous(memory_format=torch.channels_last)
        and weight.shape[0] % CHANNELS == weight.shape[1] % CHANNELS == 0
        and min(len(maps), rows, columns) > 0
        and 36 * SAVES * tiles < 9 * rows * columns
    )


class WinogradConvolution(torch.autograd.Function):
    """A `torch.nn.functional.conv2d` in float32 with a 3×3 kernel and stride 1.

    maps [b c h w], weight [out c 3 3], bias [out] or None, padding 0 to 2 → [b out rows columns], channels last.
    Rounding errors are about 1e-6 times the largest number of a tile. An infinity spoils its tile.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
        """Convolve."""
        ctx.save_for_backward(maps, weight)
        ctx.padding = padding
        return _convolve(maps, weight, bias, padding)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Return the gradients of maps, weight and bias, for the output's gradient [b out rows columns]."""
        maps, weight = ctx.saved_tensors
        if asks_second_derivative():
            sizes = [1, 1], [ctx.padding] * 2, [1, 1], False, [0, 0], 1, list(ctx.needs_input_grad[:3])
            return *torch.ops.aten.convolution_backward(slope, maps, weight, [len(weight)], *sizes), None
        slope = slope.contiguous(memory_format=torch.channels_last)
        of_maps = of_weight = None
        if ctx.needs_input_grad[0]:
            of_maps = _convolve(slope, weight.flip(2, 3).transpose(0, 1), None, 2 - ctx.padding)
        if ctx.needs_input_grad[1]:
            channels, out_channels = weight.shape[1], weight.shape[0]
            spectrum = maps.new_empty(36, channels, out_channels)
            sizes = kernels.Maps(**_sizes(maps, out_channels, ctx.padding))
            kernels.winograd_weights(sizes, _array(maps), _array(slope), spectrum, threads=torch.get_num_threads())
            of_weight = (_KERNEL.T @ spectrum.flatten(1)).view(3, 3, channels, out_channels).permute(3, 2, 0, 1)
        return of_maps, of_weight, slope.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None, None


def _convolve(maps: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    out_channels, channels = weight.shape[:2]
    spectrum = (_KERNEL @ weight.detach().permute(2, 3, 1, 0).reshape(9, -1)).view(36, channels, out_channels)
    sizes = _sizes(maps, out_channels, padding)
    out = maps.new_empty(sizes["batch"], sizes["rows"], sizes["columns"], out_channels)
    given = None if bias is None else bias.detach().contiguous()
    threads = torch.get_num_threads()
    kernels.winograd_forward(kernels.Maps(**sizes), _array(maps), spectrum, given, out, threads=threads)
    return out.permute(0, 3, 1, 2)


def _sizes(maps: Tensor, out_channels: int, padding: int) -> dict[str, int]:
    batch, channels, height, width = maps.shape
    rows, columns = (n + 2 * padding - 2 for n in (height, width))
    of_output = {"rows": rows, "columns": columns, "out_channels": out_channels, "padding": padding}
    return {"batch": batch, "height": height, "width": width, "channels": channels, **of_output}


def _array(maps: Tensor) -> Tensor:
    """Return maps as [b h w c], outside of autograd."""
    return maps.detach().permute(0, 2, 3, 1)
