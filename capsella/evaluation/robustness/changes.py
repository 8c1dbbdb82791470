"""Four changes of test images that training did not show: Forslöv 2018, §8.3 (thesis), Table 4.

Each is a pure function (images [b c h w] in [0, 1], strength, generator) → images of the same shape in [0, 1]. A
strength of 0 changes nothing. From generators of one seed, every strength gets the same directions and shares of the
strength, so that a curve over strengths shows the strength alone.

The thesis names the changes and gives no strengths; the defaults are ours. It may have cut moved images from larger
photographs; here the pixels of the border are repeated outwards, which adds neither black corners nor a second cell.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import ArgumentError, unknown_name

Images = Float[Tensor, "b c h w"]


def flips(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Mirror each image left to right, and top to bottom, each with the probability `strength`."""
    _check("flips", images, strength, most=1)
    left, top = torch.rand(2, len(images), 1, 1, 1, generator=generator) < strength
    images = torch.where(left, images.flip(3), images)
    return torch.where(top, images.flip(2), images)


def rotation(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Flip each way with probability ½, then turn by an angle within ± `strength` degrees; at 0 no flips either.

    The thesis tests flips and rotation together; what flips do alone, `flips` shows.
    """
    _check("rotation", images, strength, most=180)
    if strength == 0:
        return images
    from kornia.geometry.transform import rotate  # over a second to import

    turn = _within(strength, (len(images),), generator)
    flipped = flips(images, 0.5, generator)
    turned: Tensor = rotate(flipped, turn, padding_mode="border")
    return turned.clamp(0, 1)


def translation(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Move by up to `strength`, a share of each side, to the nearest whole pixel, so that nothing is blurred."""
    _check("translation", images, strength, most=1)
    batch, _, height, width = images.shape
    sides = torch.tensor([height, width])
    moves = (_within(strength, (batch, 2), generator) * sides).round().long()  # down and right
    rows = (torch.arange(height) - moves[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width) - moves[:, 1:]).clamp(0, width - 1)
    image = torch.arange(batch)[:, None, None]
    return images.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def colour(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Add one constant within ± `strength` to each channel of each image; of a grey image, the brightness."""
    _check("colour", images, strength, most=1)
    return (images + _within(strength, (*images.shape[:2], 1, 1), generator)).clamp(0, 1)


def noise(images: Images, strength: float, generator: torch.Generator) -> Images:
    """Add Gaussian noise of the standard deviation `strength` to each channel of each pixel."""
    _check("noise", images, strength, most=math.inf)
    return (images + strength * torch.randn(images.shape, generator=generator)).clamp(0, 1)


@dataclass(frozen=True)
class Perturbation:
    """A change, the unit of its strength, and the strengths taken by default."""

    change: Callable[[Tensor, float, torch.Generator], Tensor]
    unit: str
    strengths: tuple[float, ...]


PERTURBATIONS = {
    "rotation": Perturbation(rotation, "degrees, with flips", (0, 15, 45, 90, 180)),
    "translation": Perturbation(translation, "share of the side", (0, 0.05, 0.1, 0.15, 0.2, 0.25)),
    "colour": Perturbation(colour, "added to a channel", (0, 0.05, 0.1, 0.2, 0.3)),
    "noise": Perturbation(noise, "standard deviation", (0, 0.02, 0.05, 0.1, 0.2)),
    "flips": Perturbation(flips, "probability of each", (0, 0.5)),
}
"""By name; the first four are the thesis's."""


def perturbation(name: str) -> Perturbation:
    """The perturbation of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in PERTURBATIONS:
        raise unknown_name("perturbation", name, PERTURBATIONS)
    return PERTURBATIONS[name]


def _within(strength: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return strength * (2 * torch.rand(shape, generator=generator) - 1)


def _check(name: str, images: Tensor, strength: float, most: float) -> None:
    if not 0 <= strength <= most or math.isinf(strength):
        rule = "a finite number of at least 0" if math.isinf(most) else f"from 0 to {most}"
        raise ArgumentError("strength", f"be {rule} for {name}", strength)
    if images.ndim != 4:
        raise ArgumentError("images", "have shape [b c h w]", tuple(images.shape))
