"""Multiple crops at test time: activations averaged over cuts around the centre (Hinton et al. 2018, Table 1)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.errors import ArgumentError
from capsella.layers import CropImages
from capsella.models.base import ImageClassifier
from capsella.types import Output

CROPS = ((0, 0), *((r * row, r * column) for r in (1, 2, 3) for row in (-1, 1) for column in (-1, 1)))
"""The thirteen cuts of the authors' code: the centre, and 1, 2 and 3 pixels off it along both diagonals."""


class MultiCrop(ImageClassifier):
    """A trained model that crops, asked several times: its activations are the mean over cuts at `offsets`.

    Args:
        model: created with a `crop`.
        offsets: (rows down, columns right) of each cut from the centre.

    Raises:
        ValueError: the model does not crop, or an offset reaches beyond the image.
    """

    def __init__(self, model: ImageClassifier, offsets: Sequence[tuple[int, int]] = CROPS) -> None:
        super().__init__(model.image_size, model.channels, model.classes)
        crops = [module for module in model.modules() if isinstance(module, CropImages)]
        if not crops:
            raise ValueError(f"model: must be created with a crop for multiple crops, got {model.name} without one")
        room = min(crops[0].room) // 2
        if not offsets or max(abs(shift) for offset in offsets for shift in offset) > room:
            raise ArgumentError("offsets", f"be at least one, of at most {room} pixels for this crop", offsets)
        self.model, self.offsets = model, tuple(offsets)
        self.name, self.options = model.name, model.options
        self.value_range, self.cut = model.value_range, model.cut

    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"] | None = None) -> Output:
        """Mean activations; poses and reconstructions of different cuts have no mean, and are left out."""
        if self.training:
            raise RuntimeError("MultiCrop is for evaluation; call eval() first")
        # Rolled images, cut at the centre, are images cut off the centre: what is rolled over lies beyond the cut.
        cuts = (torch.roll(images, (-rows, -columns), (2, 3)) for rows, columns in self.offsets)
        return Output(torch.stack([self.model(cut).activations for cut in cuts]).mean(0))
