"""A convolution of a map made larger, which at twice the size needs less than half of the arithmetic."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from capsella.errors import ArgumentError
from capsella.layers.large_kernels import convolve_large

PARITIES = tuple(product((0, 1), (0, 1)))
"""Of an output's row and column: even or odd."""


class UpsizedConv2d(nn.Conv2d):
    """Nearest-neighbour upsizing to `size`, zeros around the larger map, and a convolution, in one layer.

    At twice the size, neighbours in the larger map are equal, so several weights meet the same number. Which ones do
    depends only on whether the output's row and column are even or odd. The layer is then the same function as four
    small convolutions of the small map, one for each parity; their weights are sums of the large kernel's. A 6×6 kernel
    becomes 3×3, 3×4, 4×3 and 4×4 (49 products in place of 144), a 7×7 kernel four of 4×4 (64 in place of 196).
    Parities with kernels of one size share one convolution, which is faster where there are few output channels.

    The weight and the bias are the large convolution's, under the names they have in `torch.nn.Conv2d`.

    Shapes: maps [b in_channels h w] → [b out_channels *size], with the channels last in memory.

    Args:
        in_channels: of the small map.
        out_channels: of the large map.
        kernel: rows and columns of the kernel.
        zeros: around the larger map: left, right, top and bottom. They keep its size: left + right = kernel − 1, and
            so do top + bottom.
        size: rows and columns of the larger map.

    Raises:
        ValueError: zeros that would change the size.
    """

    _sums: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        zeros: tuple[int, int, int, int],
        size: tuple[int, int],
    ) -> None:
        left, right, top, bottom = zeros
        if {left + right, top + bottom} != {kernel - 1} or min(zeros) < 0:
            raise ArgumentError("zeros", f"add up to {kernel - 1} a row and a column, to keep the size", zeros)
        super().__init__(in_channels, out_channels, kernel)
        self.zeros, self.size = zeros, size
        rows, columns = ([_taps(kernel, before, parity) for parity in (0, 1)] for before in (top, left))
        self._firsts = [(rows[y][0], columns[x][0]) for y, x in PARITIES]
        self._sizes = [(rows[y][1].shape[1], columns[x][1].shape[1]) for y, x in PARITIES]
        sums = torch.cat([torch.kron(rows[y][1], columns[x][1]) for y, x in PARITIES], dim=1)
        self.register_buffer("_sums", sums, persistent=False)  # [kernel² products]

    def forward(self, maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b out *size"]:
        """Small maps to large ones."""
        maps = maps.contiguous(memory_format=torch.channels_last)
        if (2 * maps.shape[2], 2 * maps.shape[3]) != self.size:
            return F.conv2d(F.pad(_nearest(maps, self.size), self.zeros), self.weight, self.bias)
        parts = self._parts(maps)
        if torch.compiler.is_compiling():  # ONNX has one operator for it
            return F.pixel_shuffle(torch.stack(parts, 2).flatten(1, 2), 2)
        return _interleaved(parts)

    def _parts(self, maps: Tensor) -> list[Tensor]:
        """The outputs of each parity: four of [b out_channels h w]."""
        split = (self.weight.flatten(2) @ self._sums.to(self.weight)).split([h * w for h, w in self._sizes], dim=2)
        kernels = [kernel.unflatten(2, size) for kernel, size in zip(split, self._sizes, strict=True)]
        parts: dict[int, Tensor] = {}
        for size in dict.fromkeys(self._sizes):
            alike = [k for k in range(len(PARITIES)) if self._sizes[k] == size]
            outputs = _convolve(maps, [kernels[k] for k in alike], [self._firsts[k] for k in alike], self.bias)
            parts.update(zip(alike, outputs, strict=True))
        return [parts[k] for k in range(len(PARITIES))]


def _interleaved(parts: list[Tensor]) -> Tensor:
    """The large map of the outputs of each parity, with the channels last in memory.

    Written into parts of one map, they would be the same; but autograd would then copy the map's gradient four times.
    """
    even, odd = (torch.stack([part.movedim(1, 3) for part in parts[k : k + 2]], 3).flatten(2, 3) for k in (0, 2))
    return torch.stack([even, odd], 2).flatten(1, 2).movedim(3, 1)


def _nearest(maps: Float[Tensor, "b c h w"], size: tuple[int, int]) -> Tensor:
    """`torch.nn.functional.interpolate`, by places: ONNX's Resize rounds some of them to another neighbour."""
    for axis, (before, after) in enumerate(zip(maps.shape[2:], size, strict=True), start=2):
        scale = np.float32(before / after)  # as PyTorch rounds
        places = [int(np.float32(place) * scale) for place in range(after)]
        maps = maps.index_select(axis, torch.tensor(places, device=maps.device))
    return maps.contiguous(memory_format=torch.channels_last)


def _taps(kernel: int, before: int, parity: int) -> tuple[int, Tensor]:
    """Of one axis: the first place of the small map that an output of this parity meets, relative to the output's own.

    And which of the kernel's weights meet that place and those after it: ones in zeros, [kernel places].
    """
    places = [(parity + k - before) // 2 for k in range(kernel)]
    meets = torch.tensor(places)[:, None] == torch.arange(places[0], places[-1] + 1)
    return places[0], meets.float()


def _convolve(
    maps: Tensor, kernels: Sequence[Tensor], firsts: Sequence[tuple[int, int]], bias: Tensor | None
) -> list[Tensor]:
    """Kernels of one size, each from its own first place on, in one convolution: a [b out_channels h w] of each."""
    height, width = maps.shape[2:]
    rows, columns = kernels[0].shape[2:]
    tops, lefts = zip(*firsts, strict=True)
    top, left = min(tops), min(lefts)
    convolve = convolve_large if rows == columns else F.conv2d
    padded = F.pad(maps, (-left, max(lefts) + columns - 1, -top, max(tops) + rows - 1))
    biases = None if bias is None else bias.repeat(len(kernels))
    outputs = convolve(padded, torch.cat(list(kernels)), biases).chunk(len(kernels), dim=1)
    return [
        output[:, :, y - top : y - top + height, x - left : x - left + width]
        for output, (y, x) in zip(outputs, firsts, strict=True)
    ]
