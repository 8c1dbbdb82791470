"""What a stem is: enough to build it again without the folder or the hub that its weights came from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import nn

from capsella.errors import check_argument
from capsella.models.base import MOST_PIXELS
from capsella.models.stems import backbones, runs

Kind = Literal["backbone", "network"]


@dataclass(frozen=True)
class StemDescription:
    """A stem without its weights; model.json holds it, so that a saved network needs neither hub nor folder.

    kind, config: a backbone of `transformers` and its configuration up to the stage whose maps are used, or the name
    and options of a registered network. learned: whether its first weights were learned before. channels: of its
    images. mean, std: what it subtracts from and divides each channel of images in [0, 1] by, if anything. size:
    (height, width) to which images are brought. maps: (channels, rows, columns) of what it then gives.

    Raises:
        ValueError: a field is not as it must be.
    """

    kind: Kind
    config: Mapping[str, Any]
    learned: bool
    channels: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    size: tuple[int, int]
    maps: tuple[int, int, int]

    def __post_init__(self) -> None:
        check_argument(self.kind in ("backbone", "network"), "be 'backbone' or 'network'", kind=self.kind)
        check_argument(min(*self.size, *self.maps) >= 1, "be at least 1", size=self.size, maps=self.maps)
        check_argument(
            self.size[0] * self.size[1] <= MOST_PIXELS, f"have at most {MOST_PIXELS:,} pixels", size=self.size
        )
        for name, values in {"mean": self.mean, "std": self.std}.items():
            if values is not None:
                check_argument(len(values) == self.channels, f"have {self.channels} numbers", **{name: values})

    def build(self) -> nn.Module:
        """The stem's network with fresh weights.

        Raises:
            ValueError: the configuration is of no stem that can be built.
            CapsellaError: `transformers` is needed, and not installed.
        """
        return (backbones if self.kind == "backbone" else runs).build(self.config)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StemDescription":
        """What `to_dict` wrote.

        Raises:
            ValueError: a field is missing, unknown, or not as it must be.
        """
        try:
            tuples = ("mean", "std", "size", "maps")
            fields: dict[str, Any] = {k: tuple(v) if k in tuples and v is not None else v for k, v in values.items()}
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"stem: must be described as capsella writes it: {error}") from error
