"""Options of how image files become pixels, which data, networks and exported files share. Needs no PyTorch."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from capsella.errors import ArgumentError, check_argument

# (low, high): the values that become 0 and 255; values outside are clipped.
ValueRange = tuple[float, float]

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
