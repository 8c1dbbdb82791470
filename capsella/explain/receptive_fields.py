"""Where in the image a capsule looks, so that what is routed from it can be laid over the image."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import nn

from capsella.layers import CapsuleConv2d, CropImages, EnlargeImages
from capsella.models import CapsuleClassifier


@dataclass(frozen=True, eq=False)
class ReceptiveFields:
    """The receptive fields of a grid of capsules, in pixels of the image; each pair is (down, across).

    first: centre of the upper left one; the centre of pixel k is k + 1/2. step: between neighbours. side: of each.
    """

    first: Float[np.ndarray, "2"]
    step: Float[np.ndarray, "2"]
    side: Float[np.ndarray, "2"]

    def after(self, kernel: ArrayLike, stride: ArrayLike, padding: ArrayLike = 0) -> "ReceptiveFields":
        """Those of the grid that a convolution or a pooling makes of this one; one number is for both axes."""
        wider = (np.asarray(kernel) - 1) * self.step
        first = self.first + wider / 2 - np.asarray(padding) * self.step
        return ReceptiveFields(first, self.step * np.asarray(stride), self.side + wider)

    def spread(self, grid: Float[np.ndarray, "h w"], image_size: tuple[int, int]) -> Float[np.ndarray, "height width"]:
        """Values of a grid over the image: each at the centre of its receptive field, straight lines between.

        Beyond the outermost centres the values stay as they are there.
        """
        for axis, pixels in enumerate(image_size):
            centres = self.first[axis] + self.step[axis] * np.arange(grid.shape[axis])
            at = np.arange(pixels) + 0.5
            # np.interp keeps the end values beyond both ends.
            lines = [np.interp(at, centres, line) for line in np.moveaxis(grid, axis, -1)]
            grid = np.moveaxis(np.stack(lines), -1, axis)
        return grid


def receptive_fields(model: CapsuleClassifier) -> list[ReceptiveFields]:
    """Those of the children of each routed layer, in the order of the layers; the first are the primary capsules."""
    fields = ReceptiveFields(np.full(2, 0.5), np.ones(2), np.ones(2))  # of the pixels
    for part in (model.backbone, model.primary):
        for module in part.modules():
            fields = _after(fields, module)
    found = []
    for layer in model.capsule_layers:
        if isinstance(layer, CapsuleConv2d):
            found.append(fields)
            fields = fields.after(layer.geometry.kernel, layer.geometry.stride)
    return found


def _after(fields: ReceptiveFields, module: nn.Module) -> ReceptiveFields:
    if isinstance(module, nn.Conv2d | nn.MaxPool2d):
        if isinstance(module.padding, str):
            raise ValueError(f"convolution: must have a kernel, stride and padding in numbers, got {module.padding!r}")
        return fields.after(module.kernel_size, module.stride, module.padding)
    if isinstance(module, CropImages):
        return fields.after(1, 1, [-(room // 2) for room in module.room])
    if isinstance(module, EnlargeImages):
        scale = np.divide(module.image_size, module.size)
        return replace(fields.after(scale, scale), side=fields.side)  # new pixels hold no more of the image
    return fields
