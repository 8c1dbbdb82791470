"""Options of how image files become pixels, which data, networks and exported files share. Needs no PyTorch."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from capsella.errors import ArgumentError, check_argument

# (low, high): the values that become 0 and 255; values outside are clipped.
ValueRange = tuple[float, float]

# How an image of other proportions than the network's fits in: its ends are cropped, the rest is padded, or it is
# squashed.
Fit = Literal["crop", "pad", "squash"]

# A microscope's image is shown whole, cut to its stained cell, or cut and with its stain matched.
Cells = Literal["whole", "cut", "matched"]


def check_range(value_range: ValueRange | None) -> None:
    """Raise `ValueError` unless a range is None or two finite numbers, the lower one first."""
    if value_range is not None:
        low, high = value_range
        holds = math.isfinite(low) and math.isfinite(high) and low < high
        check_argument(holds, "be two finite numbers, the lower one first, as in --range 0 4095", range=value_range)


def check_cells(cells: str) -> None:
    """Raise `ValueError` for anything but a `Cells`."""
    if cells not in get_args(Cells):
        raise ArgumentError("cells", f"be {' or '.join(get_args(Cells))}", cells)


def check_fit(fit: str) -> None:
    """Raise `ValueError` for anything but a `Fit`."""
    if fit not in get_args(Fit):
        raise ArgumentError("fit", f"be {' or '.join(get_args(Fit))}", fit)


@dataclass(frozen=True)
class CellCut:
    """Options for cutting out the stained cell of an image.

    Attributes:
        matched: its stain is matched, too.
        radius: of the laboratory's typical nucleus, in pixels of its files, above 0; None uses the radius of each
            nucleus, so that all have the same size.
    """

    matched: bool
    radius: float | None = None

    def __post_init__(self) -> None:
        if self.radius is not None and not 0 < self.radius < float("inf"):
            raise ArgumentError("radius", "be above 0 and finite, or None", self.radius)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {"matched": self.matched, "radius": self.radius}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what `to_dict` returned; raise `ValueError`, `KeyError` or `TypeError` for anything else."""
        radius = values["radius"]
        return cls(bool(values["matched"]), None if radius is None else float(radius))


@dataclass(frozen=True)
class Preprocessing:
    """The steps from an image file to [c h w], 0..255.

    Attributes:
        size: (height, width) to resize to; None keeps the size.
        channels: 1 for grey, 3 for RGB; None keeps the channels.
        value_range: the values that become 0 and 255 in files of more than 8 bits per channel.
        cut: how the stained cell is cropped; needs a size.
        fit: how an image of other proportions fits into `size`, unless a cell is cropped.
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
