"""Sizes through stacks of convolutions."""

from collections.abc import Sequence

from capsella.errors import ArgumentError


def grid_after(image_size: tuple[int, int], convolutions: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Rows and columns after unpadded convolutions, given as (kernel, stride).

    Raises:
        ValueError: the image is too small; says the least size.

    >>> grid_after((28, 28), [(9, 1), (9, 2)])
    (6, 6)
    """
    least = 1
    for kernel, stride in reversed(convolutions):
        least = (least - 1) * stride + kernel
    if min(image_size) < least:
        shown = f"{image_size[0]}×{image_size[1]}"
        raise ArgumentError("image_size", f"be at least {least}×{least} for these kernels", image_size, shown=shown)
    rows, columns = image_size
    for kernel, stride in convolutions:
        rows, columns = (rows - kernel) // stride + 1, (columns - kernel) // stride + 1
    return rows, columns
