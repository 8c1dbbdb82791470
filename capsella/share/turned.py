"""Images turned, shifted and scaled, each by the same few amounts; `page/turned.js` does the same to show them."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

STOPS = 9


@dataclass(frozen=True)
class Change:
    """A way to change an image, and how far: `amounts` are evenly spaced, and that in the middle changes nothing.

    name: "turn" clockwise in degrees, "shift" to the right in pixels, or "scale" in per cent.
    """

    name: str
    unit: str
    amounts: tuple[float, ...]


def changes_of(width: int) -> tuple[Change, ...]:
    """Turns to 40°, whole pixels to a fifth of the width, scales from 60 to 140 %."""
    steps, pixels = range(-(STOPS // 2), STOPS // 2 + 1), max(1, round(width / 20))
    return (
        Change("turn", "°", tuple(10.0 * k for k in steps)),
        Change("shift", " px", tuple(float(pixels * k) for k in steps)),
        Change("scale", " %", tuple(100.0 + 10 * k for k in steps)),
    )


def turned(images: Float[Tensor, "b c h w"], name: str, amount: float) -> Float[Tensor, "b c h w"]:
    """Images changed about their centre, straight lines between pixels; what comes in repeats the border."""
    height, width = images.shape[2:]
    angle = math.radians(amount) if name == "turn" else 0.0
    zoom = amount / 100 if name == "scale" else 1.0
    shift = amount if name == "shift" else 0.0
    c, s = math.cos(angle) / zoom, math.sin(angle) / zoom
    # From a place in the new image to that in the old one; both axes run from -1 to 1.
    rows = [[c, s * height / width, -2 * shift / width], [-s * width / height, c, 0.0]]
    theta = torch.tensor([rows], dtype=torch.float64).expand(len(images), -1, -1)
    grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid.to(images), padding_mode="border", align_corners=False)
