"""Convolutions of large kernels, trained with a fraction of the products, to the same rounding."""

import functools
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.layers.strided_kernels import StridedConvolution, gradients_by_matrices_pay, usual_gradients
from capsella.routing.backends import asks_second_derivative, is_traced, is_transformed

TILES = range(4, 17)
"""Rows of the tiles that are tried; larger ones need more memory than they save products."""
DIRECT = 1.2
"""A direct convolution takes as long for a product as large matrices take for so many."""
WORD = 30.0
"""A number written and read again takes as long as so many products."""
WORTHWHILE = 1.5
"""How many times fewer products, counted in this way, tiles must need."""


class LargeConv2d(nn.Conv2d):
    """`torch.nn.Conv2d`, whose trainings on a processor take about a half to a third of the time for large kernels.

    In float32, the images' and the kernel's numbers are first brought to their spectra, tile by tile, where a
    convolution is a product of numbers (Mathieu, Henaff, LeCun 2014, arXiv 1312.5851; tiles: Lavin and Gray 2016, arXiv
    1509.09308). A stride of s makes s² convolutions of kernels s times smaller, whose sum is one product of matrices.
    The result differs from the direct one by rounding: where all numbers of a tile are of about one size, as those of
    images and maps, it is as near to the exact one, or nearer. An error is small beside the largest number of its tile
    (at most 16×16), not beside each: a pixel of 1e4 among others of 0.01 leaves 0.001 of error in outputs of 0.005, and
    an infinity spoils its tile. In bfloat16, the gradients of strided convolutions are products of matrices.

    Weights, bias and arguments are those of `torch.nn.Conv2d`. Where this does not pay, and outside of trainings, it
    is that.
    """

    def forward(self, input: Float[Tensor, "*b in_channels h w"]) -> Float[Tensor, "*b out_channels rows columns"]:
        """Convolve."""
        square = len({*self.kernel_size}) == len({*self.stride}) == 1
        padding = self.padding[0] if isinstance(self.padding, tuple) and len({*self.padding}) == 1 else None
        plain = self.groups == 1 and self.dilation == (1, 1) and self.padding_mode == "zeros"
        if not (self.training and square and plain) or padding is None or input.ndim != 4:
            return super().forward(input)
        return convolve_large(input, self.weight, self.bias, self.stride[0], padding)


def convolve_large(
    images: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "out c k k"],
    bias: Float[Tensor, " out"] | None,
    stride: int = 1,
    padding: int = 0,
) -> Float[Tensor, "b out rows columns"]:
    """`torch.nn.functional.conv2d`; where a gradient is asked for, as `LargeConv2d` where that pays."""
    here = images.device.type == "cpu" and torch.is_grad_enabled() and not is_traced()
    dtype = _computed_in(images, weight) if here and not is_transformed() else None
    out: Tensor
    if dtype == torch.bfloat16 and gradients_by_matrices_pay(images, weight, stride):
        rounded = (None if one is None else one.to(dtype) for one in (images, weight, bias))
        out = StridedConvolution.apply(*rounded, stride, padding)
        return out
    tile = _tile_for(images, weight, stride, padding) if dtype == torch.float32 else None
    if tile is None:
        return torch.nn.functional.conv2d(images, weight, bias, stride, padding)
    out = _TiledConvolution.apply(images, weight, stride, padding, tile)
    return out if bias is None else out + bias[:, None, None]


def _computed_in(images: Tensor, weight: Tensor) -> torch.dtype | None:
    """In which numbers a processor would convolve; None where the two have different ones."""
    given = {images.dtype, weight.dtype}
    if torch.is_autocast_enabled("cpu") and torch.float64 not in given:
        return torch.get_autocast_dtype("cpu")
    return images.dtype if len(given) == 1 else None


def _tile_for(images: Tensor, weight: Tensor, stride: int, padding: int) -> int | None:
    (batch, channels, height, width), (maps, _, kernel, _) = images.shape, weight.shape
    return best_tile(batch, channels, maps, height, width, kernel, stride, padding)


class Bilinear(NamedTuple):
    """The valid correlation of n×n numbers x with k×k taps w is output @ ((image @ x) · (kernel @ w)), all flattened.

    image [r n²], kernel [r k²], output [(n − k + 1)² r]: r products in place of (n − k + 1)² k².
    """

    image: Tensor
    kernel: Tensor
    output: Tensor


@functools.cache
def bilinear(n: int, k: int) -> Bilinear:
    """By the discrete Fourier transform of n×n numbers, in float64.

    Circular over n×n, its first n − k + 1 rows and columns are the valid ones. Of each pair of conjugate frequencies
    one is kept, and its complex product takes three real ones (Gauss): of a + bi and c + di they are ac, bd and
    (a + b)(c + d).
    """
    rows = [torch.arange(size, dtype=torch.float64) for size in (n, k, n - k + 1)]
    image, kernel, output = [], [], []
    for u in range(n):
        for v in range(n):
            if ((-u) % n, (-v) % n) < (u, v):
                continue
            x, w, y = ((2 * math.pi / n * (u * r[:, None] + v * r)).flatten() for r in rows)
            if ((-u) % n, (-v) % n) == (u, v):  # a real frequency
                image.append(x.cos())
                kernel.append(w.cos())
                output.append(y.cos() / n**2)
                continue
            a, b, c, d = x.cos(), -x.sin(), w.cos(), w.sin()  # the kernel's spectrum is conjugated: a correlation
            real, imaginary = 2 * y.cos() / n**2, -2 * y.sin() / n**2
            image += [a, b, a + b]
            kernel += [c, d, c + d]
            output += [real - imaginary, -real - imaginary, imaginary]
    return Bilinear(torch.stack(image), torch.stack(kernel), torch.stack(output, 1))


class Part(NamedTuple):
    """The numbers that a tile takes of a map, or gives to it: `matrix` has a column for each, `places` says where."""

    matrix: Tensor
    places: Tensor


class Tiling(NamedTuple):
    """How a map is cut: parts of the image [phase][tile], of the kernel [phase], of the output [tile]."""

    images: list[list[Part]]
    kernels: list[Part]
    outputs: list[Part]
    size: tuple[int, int]
    products: int


@functools.lru_cache(maxsize=32)
def tiling(height: int, width: int, kernel: int, stride: int, padding: int, tile: int, dtype: torch.dtype) -> Tiling:
    """Cut maps of this size into tiles; what lies beyond the map is zero, and left out."""
    taps = -(-kernel // stride)
    step = tile - taps + 1
    size = output_size(height, kernel, stride, padding), output_size(width, kernel, stride, padding)
    image, taken, output = (matrix.to(dtype) for matrix in bilinear(tile, taps))
    phases = [(row, column) for row in range(stride) for column in range(stride)]
    tiles = [(row, column) for row in range(0, size[0], step) for column in range(0, size[1], step)]

    def first(at: tuple[int, int], phase: tuple[int, int]) -> tuple[int, int]:
        row, column = (stride * place + offset - padding for place, offset in zip(at, phase, strict=True))
        return row, column

    return Tiling(
        [[_part(image, first(at, phase), stride, tile, (height, width)) for at in tiles] for phase in phases],
        [_part(taken, phase, stride, taps, (kernel, kernel)) for phase in phases],
        [_part(output.T, at, 1, step, size) for at in tiles],
        size,
        len(image),
    )


def _part(matrix: Tensor, first: tuple[int, int], step: int, rows: int, size: tuple[int, int]) -> Part:
    """Rows × rows places of a map of `size`, from `first` on, each `step` apart; and their columns of the matrix."""
    row, column = (start + step * torch.arange(rows) for start in first)
    inside = ((row >= 0) & (row < size[0]))[:, None] & (column >= 0) & (column < size[1])
    places = (row[:, None] * size[1] + column)[inside]
    return Part(matrix[:, inside.flatten()].contiguous(), places)


def output_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """Rows of a convolution's output."""
    return (size + 2 * padding - kernel) // stride + 1


@functools.lru_cache(maxsize=256)
def best_tile(
    batch: int, channels: int, maps: int, height: int, width: int, kernel: int, stride: int, padding: int
) -> int | None:
    """The tile that needs the fewest products in a step of training; None where none is `WORTHWHILE`.

    `WORD` and `DIRECT` were measured on one core with AVX-512.
    """
    taps, rows, columns = -(-kernel // stride), *(output_size(n, kernel, stride, padding) for n in (height, width))
    if taps < 3 or min(rows, columns) < 1:
        return None
    direct = DIRECT * 3 * batch * rows * columns * kernel**2 * channels * maps
    costs = {}
    for tile in TILES:
        step = tile - taps + 1
        if step < 1:
            continue
        products = (3 * tile**2 - (1 if tile % 2 else 4)) // 2 + (1 if tile % 2 else 4)
        tiles = -(-rows // step) * -(-columns // step)
        image, taken, output = batch * tiles * stride**2 * channels, stride**2 * channels * maps, batch * tiles * maps
        transforms = 2 * products * (tile**2 * image + taps**2 * taken + step**2 * output)
        words = products * (5 * taken + 4 * image + 4 * output)
        costs[tile] = 3 * products * stride**2 * batch * tiles * channels * maps + transforms + WORD * words
    tile = min(costs, key=costs.__getitem__)
    return tile if WORTHWHILE * costs[tile] < direct else None


class _TiledConvolution(torch.autograd.Function):
    """Maps stand as [h·w, b·c], so that a tile is some rows; spectra of a phase as [r tiles·b c] and [r out in]."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, stride: int, padding: int, tile: int) -> Tensor:
        batch, channels, height, width = images.shape
        maps, _, kernel, _ = weight.shape
        cut = tiling(height, width, kernel, stride, padding, tile, images.dtype)
        r, t, phases = cut.products, len(cut.outputs), len(cut.kernels)
        flat, taps = _pixels_first(images), _pixels_first(weight)
        seen, known = images.new_empty(phases, r, t, flat.shape[1]), images.new_empty(phases, r, taps.shape[1])
        product = images.new_zeros(r, t * batch, maps)
        for phase, (tiles, part) in enumerate(zip(cut.images, cut.kernels, strict=True)):
            for number, (matrix, places) in enumerate(tiles):
                torch.mm(matrix, flat[places], out=seen[phase, :, number])
            torch.mm(part.matrix, taps[part.places], out=known[phase])
            product.baddbmm_(seen[phase].view(r, -1, channels), known[phase].view(r, maps, channels).mT)
        product = product.view(r, t, batch * maps)
        out = images.new_empty(math.prod(cut.size), batch * maps)
        for number, (matrix, places) in enumerate(cut.outputs):
            out[places] = matrix.T @ product[:, number]
        ctx.save_for_backward(seen, known, images, weight)
        ctx.cut, ctx.stride, ctx.padding = cut, stride, padding
        return _pixels_last(out, images, maps, cut.size)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        seen, known, images, weight = ctx.saved_tensors
        if asks_second_derivative():
            return *usual_gradients(ctx, slope, images, weight), None, None, None
        cut: Tiling = ctx.cut
        (batch, channels, height, width), (maps, _, kernel, _) = images.shape, weight.shape
        r, t = cut.products, len(cut.outputs)
        flat = _pixels_first(slope)
        pulled = slope.new_empty(r, t, batch * maps)
        for number, (matrix, places) in enumerate(cut.outputs):
            torch.mm(matrix, flat[places], out=pulled[:, number])
        pulled = pulled.view(r, t * batch, maps)
        of_images = of_weight = None
        if ctx.needs_input_grad[0]:
            out = slope.new_zeros(height * width, batch * channels)
            for tiles, spectrum in zip(cut.images, known, strict=True):
                back = torch.bmm(pulled, spectrum.view(r, maps, channels)).view(r, t, -1)
                for number, (matrix, places) in enumerate(tiles):
                    out.index_add_(0, places, matrix.T @ back[:, number])
            of_images = _pixels_last(out, slope, channels, (height, width))
        if ctx.needs_input_grad[1]:
            out = slope.new_empty(kernel**2, maps * channels)
            for part, spectrum in zip(cut.kernels, seen, strict=True):
                back = torch.bmm(pulled.mT, spectrum.view(r, -1, channels)).view(r, -1)
                out[part.places] = part.matrix.T @ back
            of_weight = out.T.contiguous().view(maps, channels, kernel, kernel)
        return of_images, of_weight, None, None, None


def _pixels_first(maps: Tensor) -> Tensor:
    """[b c h w] → [h·w, b·c], one row after another in memory."""
    batch, channels, height, width = maps.shape
    if maps.is_contiguous():
        return maps.view(batch * channels, height * width).T.contiguous()
    return maps.permute(2, 3, 0, 1).reshape(height * width, batch * channels)


def _pixels_last(flat: Tensor, like: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    """What `_pixels_first` made, undone; in memory as `like`."""
    if like.is_contiguous():
        return flat.T.contiguous().view(len(like), channels, *size)
    maps = flat.view(*size, len(like), channels).permute(2, 3, 0, 1)
    return maps.contiguous(memory_format=torch.channels_last)
