"""Preprocessing options that data, networks and exported files share. Needs no PyTorch."""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

from capsella.errors import check_argument

# (low, high): the values that become 0 and 255; values outside are clipped.
ValueRange = tuple[float, float]

# How an image whose aspect ratio differs from the network's is fitted: crop its ends, pad the missing area, or squash
# the image.
Fit = Literal["crop", "pad", "squash"]

# What a network sees of a microscope image: all, a crop of the stained cell, or that crop with a normalised stain.
Cells = Literal["whole", "cut", "matched"]


def check_range(value_range: ValueRange | None) -> None:
    """Raise `ValueError` unless a range is None or two finite numbers, the lower one first."""
    if value_range is not None:
        low, high = value_range
        holds = math.isfinite(low) and math.isfinite(high) and low < high
        check_argument(holds, "be two finite numbers, the lower one first, as in --range 0 4095", range=value_range)


def check_fit(fit: str) -> None:
    """Raise `ValueError` unless `fit` is one of `Fit`."""
    check_argument(fit in get_args(Fit), f"be {' or '.join(get_args(Fit))}", fit=fit)


class CellStain(NamedTuple):
    """The typical stain of a laboratory's cytoplasm, as optical densities relative to those of the nucleus.

    amount: the component along the nucleus's colour (the nucleus has 1). red, green, blue: the remainder, in units of
    the nucleus's density. contrast: 90th percentile, over the pixels of a cell, of the norm by which the remainder
    differs from that of typical cytoplasm; the median over cells.
    """

    amount: float
    red: float
    green: float
    blue: float
    contrast: float


@dataclass(frozen=True)
class CellCut:
    """Options for cutting out the stained cell of an image.

    Attributes:
        matched: whether the stain is normalised, too.
        radius: radius of the laboratory's typical nucleus, in pixels of its image files, above 0. None uses the radius
            of each image's own nucleus, so that all nuclei get the same size.
        stain: the laboratory's typical cytoplasm, to be matched; None matches the nucleus alone.
    """

    matched: bool
    radius: float | None = None
    stain: CellStain | None = None

    def __post_init__(self) -> None:
        fits = self.radius is None or 0 < self.radius < float("inf")
        check_argument(fits, "be above 0 and finite, or None", radius=self.radius)
        if self.stain is not None:
            fits = self.matched and 0 < self.stain.amount < 1 and 0 < self.stain.contrast < float("inf")
            rule = "have an amount between 0 and 1 and a contrast above 0, and come with matched stains"
            check_argument(fits, rule, stain=tuple(self.stain))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {"matched": self.matched, "radius": self.radius, "stain": self.stain and list(self.stain)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what `to_dict` returned; raise `ValueError`, `KeyError` or `TypeError` for anything else."""
        radius, stain = values["radius"], values["stain"]
        return cls(
            bool(values["matched"]),
            None if radius is None else float(radius),
            None if stain is None else CellStain(*map(float, stain)),
        )


@dataclass(frozen=True)
class Preprocessing:
    """The steps from an image file to [c h w], 0..255.

    Attributes:
        size: (height, width) to resize to; None keeps the size.
        channels: 1 for grey, 3 for RGB; None keeps the channels.
        value_range: the values that become 0 and 255 in files of more than 8 bits per channel.
        cut: how the stained cell is cropped; needs a size.
        fit: how an image of another aspect ratio is fitted into `size`, unless a cell is cropped.
    """

    size: tuple[int, int] | None = None
    channels: int | None = None
    value_range: ValueRange | None = None
    cut: CellCut | None = None
    fit: Fit = "crop"

    def __post_init__(self) -> None:
        check_argument(self.size is None or min(self.size) >= 1, "be (height, width), 1 pixel or more", size=self.size)
        check_range(self.value_range)
        check_argument(self.size is not None or self.cut is None, "be None without a size", cut=self.cut)
        check_fit(self.fit)
