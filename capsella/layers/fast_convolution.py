"""Convolutions that train in a half to a third of the time on a CPU.

In float32, convolving the spectra of tiles needs a fraction of the multiplications. Large kernels use PyTorch's matrix
products for this, 3×3 kernels the C++ code of csrc/winograd.cpp: Winograd's F(4×4, 3×3) (Lavin and Gray 2016, arXiv
1509.09308), where tiles of 6×6 numbers are transformed to spectra.
"""

import functools
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella._native import kernels
from capsella.routing.functional import asks_second_derivative, is_traced, is_transformed

TILES = range(4, 17)  # rows of the tiles that are tried; larger tiles cost more memory than they save multiplications
DIRECT = 1.2  # time of a multiplication in a direct convolution, relative to one in a product of large matrices
WORD = 30.0  # time of writing a number and reading it again, relative to the same
WORTHWHILE = 1.5  # tiles must be faster by this factor
CHANNELS = 16  # the kernels take only multiples of this many channels
SAVES = 1.6  # a direct convolution must need this many times the multiplications of the tiles
# From a kernel's three numbers along one axis to their spectrum at 0, ±1, ±2 and infinity.
_AXIS = torch.tensor(
    [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
     [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]],
    dtype=torch.float64,
)  # fmt: skip
_KERNEL = torch.kron(_AXIS, _AXIS).float()  # [36 9]


class FastConv2d(nn.Conv2d):
    """A `torch.nn.Conv2d` that trains faster on a CPU where its kernel is large, or 3×3 with stride 1.

    `WinogradConvolution` takes 3×3 kernels over maps stored channels last. For large kernels in float32, images and
    kernel are transformed to spectra, tile by tile, where a convolution is an element-wise product (Mathieu, Henaff,
    LeCun 2014, arXiv 1312.5851; tiles: Lavin and Gray 2016, arXiv 1509.09308). A stride of s splits the convolution
    into s² ones with kernels s times smaller, whose sum is one matrix product.

    The result differs from a direct convolution by rounding. If all numbers of a tile have about the same magnitude, as
    in images and maps, it is at least as near to the exact result. Errors are small relative to the largest number of
    their tile (at most 16×16), not to each number: a pixel of 1e4 among others of 0.01 leaves an error of 0.001 in
    outputs of 0.005, and an infinity spoils its tile.

    Weights, bias and arguments are those of `torch.nn.Conv2d`. In evaluation mode, and where this is not faster, the
    layer is exactly that convolution.
    """

    def forward(self, input: Float[Tensor, "*b in_channels h w"]) -> Float[Tensor, "*b out_channels rows columns"]:
        """Convolve."""
        square = len({*self.kernel_size}) == len({*self.stride}) == 1
        padding = self.padding[0] if isinstance(self.padding, tuple) and len({*self.padding}) == 1 else None
        plain = self.groups == 1 and self.dilation == (1, 1) and self.padding_mode == "zeros"
        if not (self.training and square and plain) or padding is None or input.ndim != 4:
            return super().forward(input)
        return fast_conv2d(input, self.weight, self.bias, self.stride[0], padding)


def fast_conv2d(
    images: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "out c k k"],
    bias: Float[Tensor, " out"] | None,
    stride: int = 1,
    padding: int = 0,
) -> Float[Tensor, "b out rows columns"]:
    """Convolve as `torch.nn.functional.conv2d`, or as `FastConv2d` if gradients are enabled and that is faster."""
    here = images.device.type == "cpu" and torch.is_grad_enabled() and not is_traced() and not is_transformed()
    single = images.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    out: Tensor
    if here and single and winograd_pays(images, weight, stride, padding):
        out = WinogradConvolution.apply(images, weight, bias, padding)
        return out
    tile = None
    if here and single:
        batch, channels, height, width = images.shape
        tile = best_tile(batch, channels, len(weight), height, width, weight.shape[2], stride, padding)
    if tile is None:
        return torch.nn.functional.conv2d(images, weight, bias, stride, padding)
    out = _TiledConvolution.apply(images, weight, stride, padding, tile)
    return out if bias is None else out + bias[:, None, None]


@functools.cache
def bilinear(n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return matrices X [r n²], W [r k²] and Y [(n − k + 1)² r] for convolutions of n×n images x with k×k kernels w.

    The valid correlation is Y @ ((X @ x) · (W @ w)), all flattened: r multiplications instead of (n − k + 1)² k². The
    matrices are the discrete Fourier transform of n×n numbers, in float64. The correlation is circular over n×n; its
    first n − k + 1 rows and columns are the valid ones. One of each pair of conjugate frequencies is kept. Its complex
    product takes three real ones (Gauss): for a + bi and c + di they are ac, bd and (a + b)(c + d).
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
    return torch.stack(image), torch.stack(kernel), torch.stack(output, 1)


class Part(NamedTuple):
    """The elements of a flattened map that a tile reads or writes: indices `places`, with a column of `matrix` each."""

    matrix: Tensor
    places: Tensor


class Tiling(NamedTuple):
    """A map cut into tiles: parts of the image [phase][tile], of the kernel [phase], of the output [tile]."""

    images: list[list[Part]]
    kernels: list[Part]
    outputs: list[Part]
    size: tuple[int, int]
    products: int


@functools.lru_cache(maxsize=32)
def tiling(height: int, width: int, kernel: int, stride: int, padding: int, tile: int, dtype: torch.dtype) -> Tiling:
    """Return how maps of this size are cut into tiles; places beyond the map are zero and left out."""
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
    """Return the part of a map of `size` with rows × rows places, the first at `first`, `step` apart."""
    row, column = (start + step * torch.arange(rows) for start in first)
    inside = ((row >= 0) & (row < size[0]))[:, None] & (column >= 0) & (column < size[1])
    places = (row[:, None] * size[1] + column)[inside]
    return Part(matrix[:, inside.flatten()].contiguous(), places)


def output_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """Return the rows, or columns, of a convolution's output."""
    return (size + 2 * padding - kernel) // stride + 1


@functools.lru_cache(maxsize=256)
def best_tile(
    batch: int, channels: int, maps: int, height: int, width: int, kernel: int, stride: int, padding: int
) -> int | None:
    """Return the number of rows of the fastest tile for a training step; None if none is `WORTHWHILE`.

    The cost model's `WORD` and `DIRECT` were measured on one core with AVX-512.
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
    """Maps are [h·w, b·c], so that a tile is a set of rows; spectra of a phase are [r tiles·b c] and [r out in]."""

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
            # PyTorch's own convolution can be differentiated again.
            sizes = [ctx.stride] * 2, [ctx.padding] * 2, [1, 1], False, [0, 0], 1, [*ctx.needs_input_grad[:2], False]
            of_images, of_weight, _ = torch.ops.aten.convolution_backward(slope, images, weight, None, *sizes)
            return of_images, of_weight, None, None, None
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
    """Turn [b c h w] into [h·w, b·c], one row after another in memory."""
    batch, channels, height, width = maps.shape
    if maps.is_contiguous():
        return maps.view(batch * channels, height * width).T.contiguous()
    return maps.permute(2, 3, 0, 1).reshape(height * width, batch * channels)


def _pixels_last(flat: Tensor, like: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    """Undo `_pixels_first`, with the memory layout of `like`."""
    if like.is_contiguous():
        return flat.T.contiguous().view(len(like), channels, *size)
    maps = flat.view(*size, len(like), channels).permute(2, 3, 0, 1)
    return maps.contiguous(memory_format=torch.channels_last)


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
