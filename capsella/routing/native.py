"""What all native kernels take: plain float32 arrays and the numbers of a capsule convolution."""

from typing import Any

from torch import Tensor

from capsella.routing.convolution import Geometry


def conv_shape(poses: Tensor, weight: Tensor, geometry: Geometry) -> list[int]:
    """`Conv` of csrc/kernels.h, but for `tied`: [b h w c_in, h' w' c_out, kh kw, sh sw, n q c].

    A pose [n q] times its weight [q c] is a vote [n c]; n = 1 for vector poses.
    """
    batch, height, width, c_in, p = poses.shape
    c_out, q, c = weight.shape[3:]
    return [
        batch,
        height,
        width,
        c_in,
        *geometry.grid((height, width)),
        c_out,
        *geometry.kernel,
        *geometry.stride,
        p // q,
        q,
        c,
    ]


def ready(*tensors: Tensor | None) -> list[Any]:
    """Contiguous, and outside of autograd, which will not hand over an array of a tensor it follows."""
    return [None if tensor is None else tensor.detach().contiguous() for tensor in tensors]
