"""Where in the image a capsule looks, so that what is routed from it can be laid over the image."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import nn

from capsella.layers import CapsuleConv2d, CropImages, EnlargeImages
from capsella.models import CapsuleClassifier


@dataclass(frozen=True)
class ReceptiveFields:
    """The receptive fields of a grid of capsules, in pixels of the image; each pair is (down, across).

    first: centre of the upper left one; the centre of pixel k is k + 1/2. step: between neighbours. side: of each.
    """

    first: tuple[float, float] = (0.5, 0.5)
    step: tuple[float, float] = (1.0, 1.0)
    side: tuple[float, float] = (1.0, 1.0)

    def after(
        self, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[float, float] = (0, 0)
    ) -> "ReceptiveFields":
        """Those of the grid that a convolution or a pooling makes of this one."""
        return ReceptiveFields(
            _pair(self.first[n] + ((kernel[n] - 1) / 2 - padding[n]) * self.step[n] for n in (0, 1)),
            _pair(self.step[n] * stride[n] for n in (0, 1)),
            _pair(self.side[n] + (kernel[n] - 1) * self.step[n] for n in (0, 1)),
        )

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
    fields = ReceptiveFields()
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
        return fields.after(_both(module.kernel_size), _both(module.stride), _both(module.padding))
    if isinstance(module, CropImages):
        return fields.after((1, 1), (1, 1), _pair(-(room // 2) for room in module.room))
    if isinstance(module, EnlargeImages):
        scale = _pair(old / new for old, new in zip(module.image_size, module.size, strict=True))
        return ReceptiveFields(
            _pair(fields.first[n] + (scale[n] - 1) / 2 * fields.step[n] for n in (0, 1)),
            _pair(fields.step[n] * scale[n] for n in (0, 1)),
            fields.side,
        )
    return fields


def _both(value: object) -> tuple[int, int]:
    """PyTorch's one number for both axes, or a pair."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, tuple) and len(value) == 2:
        return value
    raise ValueError(f"convolution: must have a kernel, stride and padding in numbers, got {value!r}")


def _pair(values: Iterable[float]) -> tuple[float, float]:
    down, across = values
    return down, across
