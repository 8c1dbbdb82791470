"""What counts as an error."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def strongest(activations: Float[Tensor, "b classes"], labels: Int[Tensor, " b *k"]) -> Int[Tensor, " b *k"]:
    """What a model says an image shows: the class of the largest activation, or those of the two largest for `labels`
    of two classes an image ([S] §6), the one that is a label in the place of that label.

    >>> strongest(torch.tensor([[0.1, 0.8, 0.3, 0.9]]), torch.tensor([[1, 2]]))
    tensor([[1, 3]])
    """
    if labels.ndim == 1:
        return activations.argmax(1)
    first, second = strongest_first(activations, 2).unbind(1)
    crossed = (first == labels[:, 1]) | (second == labels[:, 0])
    return torch.stack([torch.where(crossed, second, first), torch.where(crossed, first, second)], 1)


def strongest_first(activations: Float[Tensor, "*b classes"], most: int) -> Int[Tensor, "*b most"]:
    """The classes of the largest activations; of equal ones the first comes first, as of `argmax`.

    >>> strongest_first(torch.ones(5), 2)
    tensor([0, 1])
    """
    return activations.argsort(dim=-1, descending=True, stable=True)[..., :most]


def count_errors(activations: Float[Tensor, "b classes"], labels: Int[Tensor, " b *k"]) -> int:
    """Images classified wrong; of two classes an image, both must be found ([S] §6)."""
    wrong = strongest(activations, labels) != labels
    return int(wrong.flatten(1).any(1).sum() if wrong.ndim == 2 else wrong.sum())
