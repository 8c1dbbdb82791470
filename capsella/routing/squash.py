"""The squashing non-linearities and the length of a capsule; computed at least in float32, as squares overflow."""

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.types import at_least_float32

# Inside the square root: a zero vector then has a zero value and a zero gradient, instead of NaN.
EPSILON = 1e-12


def squash(s: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Shrink a vector to a length below 1, keeping its direction (Sabour et al. 2017, Eq. 1).

    v = ‖s‖²/(1+‖s‖²) · s/‖s‖.

    >>> import torch
    >>> squash(torch.tensor([3.0, 4.0])).norm().item()  # 25 / 26
    0.9615...
    >>> squash(torch.zeros(2))
    tensor([0., 0.])
    """
    wide = at_least_float32(s)
    squared = wide.square().sum(-1, keepdim=True)
    return (wide * (squared / (1 + squared) / (squared + EPSILON).sqrt())).to(s.dtype)


def squash_exponential(s: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Shrink a vector to a length below 1, keeping its direction (Mazzia et al. 2021, Eq. 3).

    v = (1 − e^−‖s‖) · s/‖s‖: of slope 1 at zero, where `squash` has slope 0 and short vectors hardly learn.

    >>> import torch
    >>> squash_exponential(torch.tensor([3.0, 4.0])).norm().item()  # 1 − e⁻⁵
    0.9932...
    >>> squash_exponential(torch.zeros(2))
    tensor([0., 0.])
    """
    wide = at_least_float32(s)
    norm = length(wide).unsqueeze(-1)
    return (wide * (-torch.expm1(-norm) / norm)).to(s.dtype)


def length(v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """The length ‖v‖ of a capsule, which [S] reads as the probability that its entity is there.

    Never exactly zero (at least 1e-6), so that its gradient is finite for a zero vector.
    """
    return (at_least_float32(v).square().sum(-1) + EPSILON).sqrt().to(v.dtype)
