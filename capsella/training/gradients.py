"""What a step of training may end in, and the norm of each layer's gradient: where in the network training acts."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from capsella.errors import CapsellaError


class TrainingDivergedError(CapsellaError):
    """The loss or a gradient is no longer a finite number. remedy: where it can go on from, and how."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


def gradient_norms(model: nn.Module) -> tuple[list[str], Tensor]:
    """Names of the modules that have parameters of their own, and the Euclidean norm of the gradient of each [modules].

    The norm of these norms is the norm of the whole gradient. Parameters without a gradient are left out.
    """
    norms: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            norms.setdefault(name.rpartition(".")[0], []).append(torch.linalg.vector_norm(parameter.grad))
    return list(norms), torch.stack([torch.linalg.vector_norm(torch.stack(parts)) for parts in norms.values()])


@contextmanager
def explained_alone(images: int) -> Iterator[None]:
    """Where a batch normalisation gets one number a channel, of a batch of one image, say what to do.

    Raises:
        CapsellaError: it does.
    """
    try:
        yield
    except ValueError as error:
        if images > 1 or "more than 1 value per channel" not in str(error):
            raise
        raise CapsellaError(
            "batch_size: must give a batch normalisation of this network two images or more at once, got 1; give a "
            "larger --batch-size, or more images"
        ) from error
