"""Options of how image files become pixels, which data, networks and exported files share. Needs no PyTorch."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from capsella.errors import ArgumentError, check_argument

ValueRange = tuple[float, float]
"""(low, high): the values that become 0 and 255; values outside become 0 or 255 as well."""

Cells = Literal["whole", "cut", "matched"]
"""How a network sees a microscope's image: whole, cut to its stained cell, or cut and with its stain matched; see
`capsella.data.cell_crop`."""


def check_range(value_range: ValueRange | None) -> None:
    """Raise `ValueError` where a range is not (low, high) of finite numbers, low below high."""
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
    """How the stained cell of an image is cut out; see `capsella.data.cell_crop`.

    Attributes:
        matched: whether its stain is matched, too.
        radius: that of the laboratory's usual nucleus, in pixels of its files, in (0, ∞); None takes the radius of each
            nucleus, so that all have one size.

    Raises:
        ValueError: a radius outside its range.
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
