"""`DataOptions`: which images, at which size, split how; the fields are the command line's flags."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum, not_negative
from capsella.image_options import CellCut, Cells, ValueRange, check_cells, check_range

STEREO = ("smallnorb", "smallnorb-jpeg", "smallnorb-jpeg-poses")
VIEWED = (*STEREO, "toys")
PAIRED = ("multimnist", "multi")
LABORATORIES = "laboratories"
STAINED = ("folder", "npz", "pbc", "bccd", "segmentation-wbc", LABORATORIES)
Duplicates = Literal["error", "keep", "ignore"]
PAIR_FIELDS = ("pair_shift", "pair_invert", "train_pairs", "validation_pairs", "test_pairs")

MOST_SIZE = 4096
"""Pixels a side; more is a slip of the pen, and 48 MB of memory an image."""


@dataclass(frozen=True)
class DataOptions:
    """Which images to load, at which size, and how to split them.

    Raises:
        ValueError: a field is outside its range, or belongs to other sources than `name`.
    """

    name: str = "digits"
    """Name of the source (`capsella data list` shows them all), `folder` or `npz` for images of your own, or `multi`
    for pairs of another source's images, one over the other."""

    of: str | None = None
    """Only for `multi`: the source of the images in the pairs; its own flags, as `path` and `size`, go with it."""

    path: Path | None = None
    """The folder with one sub-folder a class (`folder`), or the .npz file (`npz`)."""

    size: int | None = None
    """Crop the centre to a square and resize to this many pixels a side; without it images keep their size."""

    channels: Literal[1, 3] | None = None
    """1 converts to grey, 3 to RGB; without it images stay as they are, and all must be alike."""

    range: ValueRange | None = None
    """The values that become 0 and 255 in files of more than 8 bits a channel, as `0 4095` of a camera of 12 bits. For
    `folder`, without it: what the training images state, or else the percentiles 0.1 and 99.9 of their values."""

    cells: Cells = "whole"
    """Only for stained cells in colour, with a size: `cut` finds the cell of each image by its nucleus and cuts it out,
    at the laboratory's own scale; `matched` also brings background and nucleus to one colour."""

    cell_radius: float | None = None
    """Only with `--cells`: the radius of a usual nucleus in pixels of the image files; default: the median of 100
    images. It sets the scale, for microscopes magnify differently."""

    validation: float = 0.1
    """Share of the training images held out for validation, class by class, where the source sets none apart."""

    test: float = 0.2
    """Share of all images held out for the test, class by class, where the source sets none apart."""

    folds: int | None = None
    """Part all images into this many folds, class by class, and test on one of them, in place of `--test`: for few
    images, so that in turn each is tested once. Of a source that sets test images apart, as smallNORB, only its
    training images are parted, and nothing sees the test images: to choose a training by."""

    fold: int | None = None
    """With `--folds`: which of them is tested, from 0 on. Without it, `capsella train` trains on all in turn."""

    split_file: Path | None = None
    """A CSV file that says which image is in train, validation or test, or unused, in place of the shares and of the
    source's own split. Columns: file (for `folder`, relative to it) and split; `capsella data split` writes one."""

    group: str | None = None
    """Images of one group stay on one side of every split. For `folder`: a regular expression whose one capture group,
    found in the relative path, names the patient or slide; for `npz`: the name of an array of integers; for toys and
    smallNORB: `instance`; for `laboratories`: that of each folder or .npz file among them."""

    camera: Literal["left", "right", "both"] = "left"
    """Which images of smallNORB's stereo pairs; both become two channels."""

    viewpoints: Literal["all", "azimuth", "elevation"] = "all"
    """Only for toys and smallNORB: train on a third of the azimuths or elevations, and test on the novel rest."""

    test_viewpoints: Literal["novel", "familiar"] = "novel"
    """With `viewpoints`: test on the novel ones, or on those trained on, for comparison."""

    split_seed: int = 0
    """Seed of the held-out shares and of what the limits a class keep: the same seed gives the same split on every
    machine."""

    skip_broken: bool = False
    """Leave out images that cannot be read, and list them, instead of stopping at the first."""

    duplicates: Duplicates = "error"
    """Only for images of your own: the same image in two classes, or in two parts of a split of your own, is an error,
    or with `keep` a warning. Copies of an image, resized or saved anew too, stay on one side of the splits that are
    drawn. `ignore` does not look for copies."""

    per_class: int | None = None
    """Keep at most this many training images a class; a smaller number keeps a part of what a larger one keeps."""

    first_classes: int | None = None
    """Keep only the first this many classes, in the source's order. They are taken last: their images are in the same
    splits, and `per_class` keeps the same ones, as with all classes."""

    validation_per_class: int | None = None
    """Keep at most this many validation images a class, where an epoch would spend more time on them than training."""

    test_per_class: int | None = None
    """Keep at most this many test images a class, for quick tables that compare their own rows; an error rate to be
    compared with others takes all."""

    pair_shift: int = 4
    """Only for pairs: most pixels that each image moves in each direction on a canvas larger by twice as much."""

    pair_invert: bool = False
    """Only for pairs: turn light and dark over first, for images that are dark on a bright background. A pair is a sum,
    in which bright backgrounds would leave nothing but white."""

    train_pairs: int | None = None
    """Only for pairs: how many there are to train on; without it, 1,000 for each training image."""

    validation_pairs: int | None = None
    """Only for pairs: how many there are to choose a model by; without it, 1,000 for each validation image."""

    test_pairs: int | None = None
    """Only for pairs: how many there are to test on, the first of the same 1,000 for each test image."""

    laboratories: tuple[str, ...] = ()
    """Only for `laboratories`, the images of several together: each a folder, an .npz file or a named source. Each is
    split for itself. Classes are those, by name, that all have."""

    classes: tuple[str, ...] = ()
    """Only for `laboratories`: these classes alone, in this order."""

    def __post_init__(self) -> None:
        self._check_pairs()
        if self.is_paired:
            check_argument(self.folds is None, "be None for pairs", folds=self.folds)
            self.single()  # which checks the fields of the source that the pairs are made of
            return
        for name, share in (("validation", self.validation), ("test", self.test)):
            check_argument(0 < share < 1, "be a share between 0 and 1, both excluded", **{name: share})
        size = self.size
        check_argument(size is None or 1 <= size <= MOST_SIZE, f"be from 1 to {MOST_SIZE}, as --size 64", size=size)
        check_range(self.range)
        check_cells(self.cells)
        check_argument(self.cells == "whole" or size is not None, "be whole without a size", cells=self.cells)
        radius = self.cell_radius
        check_argument(
            radius is None or 0 < radius < float("inf"), "be above 0 and finite, or None", cell_radius=radius
        )
        check_argument(
            radius is None or self.cells != "whole", "be None where cells are not cut out", cell_radius=radius
        )
        check_minimum(1, per_class=self.per_class)
        check_minimum(1, validation_per_class=self.validation_per_class, test_per_class=self.test_per_class)
        check_minimum(2, first_classes=self.first_classes)
        check_argument(self.channels in (1, 3, None), "be 1 or 3, as --channels 1, or None", channels=self.channels)
        not_negative(split_seed=self.split_seed)
        self._check_folds()
        self._check_belongs("path", ("folder", "npz"), self.path)
        self._check_belongs("cells", STAINED, repr(self.cells))
        self._check_belongs("range", ("folder", "npz"), self.range)
        self._check_belongs("group", ("folder", "npz", LABORATORIES, *VIEWED), self.group)
        self._check_belongs("duplicates", ("folder", "npz"), repr(self.duplicates))
        self._check_views()
        self._check_belongs("laboratories", (LABORATORIES,), self.laboratories)
        self._check_belongs("classes", (LABORATORIES,), self.classes)
        if self.name == LABORATORIES:
            check_argument(bool(self.laboratories), "name at least one", laboratories=self.laboratories)
            check_argument(self.folds is None, f"be None for {LABORATORIES}", folds=self.folds)
            check_argument(self.split_file is None, f"be None for {LABORATORIES}", split_file=self.split_file)
        if self.name in ("folder", "npz") and self.path is None:
            raise ValueError(f"path: must be given for the source {self.name!r}")
        if self.name == "folder" and self.group is not None:
            _check_pattern(self.group)

    def _check_pairs(self) -> None:
        self._check_belongs("of", ("multi",), repr(self.of))
        named = self.name != "multi" or not (self.of is None or self.of in PAIRED)
        check_argument(named, "name the source of the images in the pairs", of=self.of)
        not_negative(pair_shift=self.pair_shift)
        self._check_belongs("pair_shift", PAIRED, self.pair_shift)
        self._check_belongs("pair_invert", PAIRED, "it")
        for name in ("train_pairs", "validation_pairs", "test_pairs"):
            number = getattr(self, name)
            self._check_belongs(name, PAIRED, number)
            check_minimum(1, **{name: number})

    def _check_views(self) -> None:
        self._check_belongs("camera", STEREO, repr(self.camera))
        self._check_belongs("viewpoints", VIEWED, repr(self.viewpoints))
        if self.viewpoints == "all":
            check_argument(
                self.test_viewpoints == "novel", "be novel without viewpoints", test_viewpoints=self.test_viewpoints
            )

    def _check_folds(self) -> None:
        check_minimum(2, folds=self.folds)
        if self.folds is None:
            check_argument(self.fold is None, "be None without folds", fold=self.fold)
            return
        last = self.folds - 1
        check_argument(
            self.fold is None or 0 <= self.fold <= last, f"be from 0 to {last} of {last + 1} folds", fold=self.fold
        )
        no_share = f"stay at its default with folds, which test 1 of {self.folds} parts"
        check_argument(self.test == DataOptions.test, no_share, test=self.test)
        if self.split_file is not None:
            raise ArgumentError("folds", "be None with a split file, which sets test images apart", self.folds)

    def _check_belongs(self, field: str, sources: tuple[str, ...], got: object) -> None:
        """A field that is for some sources alone has its default for the others; `got`: its value in the error."""
        if getattr(self, field) != getattr(DataOptions, field) and self.name not in sources:
            raise ValueError(f"{field}: only for the source {' or '.join(sources)}, got {got} with {self.name!r}")

    @property
    def is_paired(self) -> bool:
        """Whether images are overlaid in pairs, so that each has two classes."""
        return self.name in PAIRED

    @property
    def is_own(self) -> bool:
        """Whether the images are one's own, in files that may change between two runs."""
        return self.path is not None or bool(self.laboratories)

    def check_outside(self, out: Path) -> None:
        """Nothing is written among the images: it would be read as a class of them.

        Raises:
            CapsellaError: `out` is, or lies in, a folder of images.
        """
        for place in (self.path, *self.laboratories):
            if place is not None and Path(place).is_dir() and out.resolve().is_relative_to(Path(place).resolve()):
                raise CapsellaError(
                    f"{out}: must lie outside the folder of images {Path(place).resolve()}; go to another folder, or "
                    "give one with --out"
                )

    @property
    def source(self) -> str:
        """Name of the source; of pairs, that of their images."""
        return self.single().name if self.is_paired else self.name

    def on(self, source: str) -> "DataOptions":
        """The same options of another source; of pairs, of pairs of its images."""
        return replace(self, name="multi", of=source) if self.is_paired else replace(self, name=source)

    def single(self) -> "DataOptions":
        """The options of the images that pairs are made of."""
        default = {field: getattr(DataOptions, field) for field in ("of", *PAIR_FIELDS)}
        return replace(self, name="mnist" if self.of is None else self.of, **default)

    @property
    def cut(self) -> CellCut | None:
        """How cells are cut out of the images, or None."""
        return None if self.cells == "whole" else CellCut(self.cells == "matched", self.cell_radius)

    @property
    def height_width(self) -> tuple[int, int] | None:
        """(height, width) that images are resized to, or None."""
        return None if self.size is None else (self.size, self.size)


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"group: must be a regular expression, got {pattern!r} ({error})") from error
    if groups != 1:
        raise ValueError(f"group: must have one capture group, as in '(patient[0-9]+)', got {groups} in {pattern!r}")
