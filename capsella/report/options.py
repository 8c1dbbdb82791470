"""The options of an evaluation; their fields are flags of `capsella evaluate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from capsella.errors import check_argument
from capsella.image_options import ValueRange, check_range


@dataclass(frozen=True, kw_only=True)
class CommonEvaluateOptions:
    """The options of an evaluation that --help shows."""

    data: str | None = None
    """Images of another domain, e.g. another laboratory: a folder, an .npz file or a named data set. All of them are
    tested. Classes are matched by name; images of classes that the network does not know are left out."""
    group: str | None = None
    """With --data: a regular expression with one capture group that finds the patient or slide in a path, e.g.
    'patient([0-9]+)'. Intervals are then over patients."""
    selective: bool = False
    """Also show the error rate at each coverage (if a person decides uncertain images)."""
    ood: tuple[str, ...] = ()
    """Also show how well out-of-distribution images are detected: a data set, a folder, an .npz file, `noise`, or
    `half` (test images with the right half painted over)."""
    routing: bool = False
    """Also measure how a capsule network routes: starved capsules, static couplings, parse trees, gradients."""
    per_class: int | Literal["all"] | None = None
    """Maximum number of test images per class. Default: as in the recipe; with --attack 20."""
    skip_broken: bool = False
    """Skip images that cannot be read, and list them."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(CommonEvaluateOptions):
    """All options of an evaluation: the images on which a run is tested, and the measurements.

    Raises:
        ArgumentError: options that do not go together.
    """

    split: Literal["test", "validation", "train"] | None = None
    """The split to test. Default: test; with --data all images, unless you name a split of a named data set."""
    range: ValueRange | None = None
    """With --data: values that become black and white in files with more than 8 bits, e.g. 0 4095."""
    test_pairs: int | None = None
    """For a run on pairs: number of test pairs."""
    ood_false_positive_rate: float = 0.05
    """With --ood or --attack: false-positive rate of the OOD check."""
    batch_size: int = 128
    """Images per batch."""

    def __post_init__(self) -> None:
        is_place = self.data is not None and Path(self.data).exists()
        check_argument(self.split is None or not is_place, "be left out: all images are tested", split=self.split)
        is_test = self.split in (None, "test")
        check_argument(is_test or not self.selective, "come with the test split", selective=self.selective)
        is_own = is_test and self.data is None
        check_argument(is_own or not self.ood, "come with the run's own test images", ood=self.ood)
        for name in ("group", "range"):
            value = getattr(self, name)
            check_argument(value is None or self.data is not None, "come with --data", **{name: value})
        check_range(self.range)

    @property
    def name(self) -> str:
        """The stem of the JSON file, derived from the options."""
        place = None if self.data is None else Path(self.data).resolve()
        source = [] if place is None else [place.name if place.is_dir() else place.stem]
        parts = [*source, self.split or ("all" if source else "test")]
        parts += [f"pairs{self.test_pairs}"] if self.test_pairs is not None else []
        parts += [f"per-class{self.per_class}"] if self.per_class is not None else []
        parts += [name for name in ("routing", "selective", "ood", "group") if getattr(self, name)]
        parts += [f"range{self.range[0]:g}-{self.range[1]:g}"] if self.range is not None else []
        return "-".join(parts)
