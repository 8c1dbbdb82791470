"""Data options, one class for each kind of source: `FolderData`, `NpzData`, `NamedData`, `PairData`, `DomainData`.

All of them are `DataOptions`, which holds what every source has: size, splits, limits per class. Needs no PyTorch.
"""

import re
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from capsella.errors import (
    ArgumentError,
    CapsellaError,
    bounded,
    check_argument,
    check_fields,
    check_types,
    near_names,
)
from capsella.image_options import CellCut, Cells, CellStain, Fit, Preprocessing, ValueRange, check_range

STEREO = ("smallnorb", "smallnorb-jpeg", "smallnorb-jpeg-poses")
WITH_VIEWPOINTS = (*STEREO, "toys", "toys-5", "toys-20")
STAINED = ("pbc", "pbc-11", "pbc-subset", "bccd", "segmentation-wbc")
_ONLY_OF = {  # fields of `NamedData` that few of its sources have
    "cells": STAINED,
    "group": WITH_VIEWPOINTS,
    "camera": STEREO,
    "viewpoints": WITH_VIEWPOINTS,
    "test_viewpoints": WITH_VIEWPOINTS,
}
MAX_SIZE = 4096  # pixels per side, i.e. 48 MB of memory per image; a larger number is taken for a typing error
Duplicates = Literal["error", "keep", "ignore"]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The options that every source of images has: how images are read, split and limited in number.

    Raises:
        ValueError: a field is outside its range, or the source does not have it.
    """

    kind: ClassVar[str]
    is_paired: ClassVar[bool] = False

    size: int | None = bounded(None, 1, MAX_SIZE)
    """Resize to a square of this many pixels a side; `fit` is for oblong images. Default: keep the size."""

    fit: Fit = "crop"
    """The way an oblong image becomes square: `crop` cuts off both ends, `pad` fills the rest with the colour of the
    border, `squash` distorts it. Default: `pad` for your own images, `crop` for public data sets. Cropped cells are
    square anyway."""

    channels: Literal[1, 3] | None = None
    """1 converts to grey, 3 to RGB. Default: keep the channels, which must then be the same in all images."""

    cells: Cells = "whole"
    """For stained cells in colour: `cut` finds the cell by its nucleus and crops it at a scale common to all images;
    `matched` also normalises background and stain. Needs a size."""

    cell_radius: float | None = bounded(None, 0, ends="()")
    """With `cells`: radius of a typical nucleus in pixels of the image files, which sets the scale. Default: the median
    of 100 images."""

    cell_stain: tuple[float, float, float, float, float] | None = None
    """With `cells=matched`: the typical stain of the laboratory's cytoplasm (amount, red, green, blue, contrast; see
    `CellStain`). Default: measured on 100 images."""

    group: str | None = None
    """Images of one group, e.g. a patient, stay in one split. A table (`patients.csv`) with the columns file and group;
    or for folders a regular expression whose one capture group, searched in the relative path, names the group; for
    .npz files the name of an array of integers; for toys and smallNORB `instance`."""

    validation: float = bounded(0.1, 0, 1, ends="()")
    """Fraction of the training images held out for validation, per class, unless the source has a validation split."""

    test: float = bounded(0.2, 0, 1, ends="()")
    """Fraction of all images held out as the test set, per class, unless the source has a test split."""

    folds: int | None = bounded(None, 2)
    """Cross-validation: divide the images into this many folds, per class, and test on one of them, in place of
    `test`. If the source has a test split, only its training images are divided, and the test images stay unused."""

    fold: int | None = None
    """With `folds`: the fold to test on, counted from 0. Without it, `capsella train` trains on all in turn."""

    split_file: Path | None = None
    """A CSV file with the columns file and split (train, validation, test or unused), which replaces the fractions and
    the source's own split. `capsella data split` writes one."""

    split_seed: int = bounded(0, 0)
    """Seed of the random splits and of the images that the limits per class keep. A seed gives the same split on every
    machine."""

    skip_broken: bool = False
    """Leave out images that cannot be read, and list them, instead of stopping at the first."""

    per_class: int | None = bounded(None, 1)
    """Maximum number of training images per class. The images kept by a smaller number are among those of a larger."""

    first_classes: int | None = bounded(None, 2)
    """Keep only this many classes, in the source's order. Splits and limits are the same as with all classes."""

    validation_per_class: int | None = bounded(None, 1)
    """Maximum number of validation images per class."""

    test_per_class: int | None = bounded(None, 1)
    """Maximum number of test images per class, for quick tables. An error rate to compare with others needs all."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_argument(self.channels in (1, 3, None), "be 1, 3 or None", channels=self.channels)
        check_argument(self.cells == "whole" or self.size is not None, "be whole without a size", cells=self.cells)
        fits = self.cell_radius is None or self.cells != "whole"
        check_argument(fits, "be None unless cells are cropped", cell_radius=self.cell_radius)
        if self.folds is None:
            check_argument(self.fold is None, "be None without folds", fold=self.fold)
        else:
            fits = self.fold is None or 0 <= self.fold < self.folds
            check_argument(fits, f"be from 0 to {self.folds - 1}", fold=self.fold)
            check_argument(self.test == DataOptions.test, "stay at its default with folds", test=self.test)
            check_argument(self.split_file is None, "be None with folds", split_file=self.split_file)

    @property
    def name(self) -> str:
        """The source's name: that of a registered set, or the kind of source."""
        return self.kind

    @property
    def source(self) -> str:
        """The source's name; for pairs, the name of the source of their images."""
        return self.name

    @property
    def paths(self) -> tuple[Path, ...]:
        """The user's own files and folders, which may change between two runs."""
        return ()

    @property
    def value_range(self) -> ValueRange | None:
        """The values that become 0 and 255 in files of more than 8 bits per channel, if they are set."""
        return self.range if isinstance(self, FileData) else None

    @property
    def cut(self) -> CellCut | None:
        """The crop of cells, or None."""
        stain = None if self.cell_stain is None else CellStain(*self.cell_stain)
        return None if self.cells == "whole" else CellCut(self.cells == "matched", self.cell_radius, stain)

    @property
    def preprocessing(self) -> Preprocessing:
        """The steps from files to pixels."""
        size = None if self.size is None else (self.size, self.size)
        return Preprocessing(size, self.channels, self.value_range, self.cut, self.fit)

    @property
    def text(self) -> str:
        """The source as `data_from` reads it."""
        return self.name

    def check_outside(self, out: Path) -> None:
        """Check that `out` is outside the folders of images. Files written there would be read as a class.

        Raises:
            CapsellaError: `out` is a folder of images, or lies in one.
        """
        for path in self.paths:
            if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
                raise CapsellaError(f"{out}: must be outside the folder of images {path.resolve()}; set --out")

    @property
    def lacks_cut(self) -> bool:
        """True if the radius of nuclei or the stain is still to be measured."""
        return self.cells != "whole" and (
            self.cell_radius is None or (self.cells == "matched" and self.cell_stain is None)
        )

    def with_measured(self, value_range: ValueRange | None, cut: CellCut | None) -> Self:
        """Return options with the measured range, nuclear radius and stain, unless they are set."""
        measured: dict[str, Any] = {}
        if self.cells != "whole" and cut is not None:
            stain = None if cut.stain is None else tuple(cut.stain)
            measured |= {"cell_radius": self.cell_radius or cut.radius, "cell_stain": self.cell_stain or stain}
        if isinstance(self, FileData):
            measured["range"] = self.range or value_range
        return replace(self, **measured)

    def with_paths_from(self, folder: Path) -> Self:
        """Return options whose relative paths are taken from `folder` if they exist there and not here."""

        def moved(path: Any) -> Any:
            if isinstance(path, tuple):
                return tuple(map(moved, path))
            is_there = path is not None and not Path(path).exists() and (folder / path).exists()
            return type(path)(folder / path) if is_there else path

        of_paths = {"path", "split_file", "of", "group", "domains"} & {field.name for field in fields(self)}
        return replace(self, **{name: moved(getattr(self, name)) for name in of_paths})

    def on(self, source: str) -> "DataOptions":
        """Return the same options for another source, named as for `data_from`, without fields that it lacks.

        `pairs` means pairs of this source's images. A group is dropped unless the kind of source stays the same, and a
        default `fit` becomes that of the other kind.
        """
        other = PairData(of=self.text) if source == "pairs" else data_from(source)
        common = {field.name for field in fields(self)} & {field.name for field in fields(other)} - _IDENTITY
        if other.kind != self.kind and not other.is_paired:
            common -= {"group"}
        if isinstance(other, NamedData):
            common -= {field for field, sources in _ONLY_OF.items() if other.name not in sources}
        return self._with_fields(other, common)

    def _with_fields(self, other: "DataOptions", names: set[str]) -> "DataOptions":
        """Return `other` with these fields of this source, but with its own default `fit` if this has its default."""
        names = names - {"fit"} if self.fit == type(self).fit else names
        return replace(other, **{name: getattr(self, name) for name in names})

    def replace(self, **changes: Any) -> Self:
        """Return options with other values of some fields, as `dataclasses.replace` does."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the kind and all fields, ready for JSON."""
        values = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}
        return {"kind": self.kind, **values}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "DataOptions":
        """Read what `to_dict` returned.

        Raises:
            KeyError: without a kind. ValueError: an unknown kind or field, or a value of another type.
        """
        values = dict(values)
        kind = values.pop("kind")
        if kind not in KINDS:
            raise ArgumentError("data.kind", f"be {', '.join(KINDS)}", kind)
        known = {field.name for field in fields(KINDS[kind])}
        for name, value in values.items():
            if name not in known:
                raise ArgumentError(f"data.{name}", "be a field of this kind of data", value, near_names(name, known))
            if name in ("path", "split_file") and value is not None:
                values[name] = Path(value)
            elif isinstance(value, list):
                values[name] = tuple(value)
        check_types(KINDS[kind], values, "data")
        return KINDS[kind](**values)


@dataclass(frozen=True)
class FileData(DataOptions):
    """The options of your own images, in a folder or a file."""

    path: Path
    """The folder with one subfolder per class, or the .npz file."""

    _: KW_ONLY

    fit: Fit = "pad"

    range: ValueRange | None = None
    """The values that become 0 and 255 in files of more than 8 bits per channel, e.g. `0 4095` for a 12-bit camera.
    Default: the percentiles 0.1 and 99.9 of the values of up to 100 images, training images if the source is split."""

    duplicates: Duplicates = "error"
    """Reaction to the same image in two classes, or in two splits of your own: stop, or warn (`keep`). Copies of
    an image, also resized or compressed ones, stay in one split. `ignore` does not look for copies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.range)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The folder or file."""
        return (self.path,)


@dataclass(frozen=True)
class FolderData(FileData):
    """Images in a folder with one subfolder per class."""

    kind: ClassVar[str] = "folder"

    @property
    def text(self) -> str:
        """The folder, with a slash at the end."""
        return f"{self.path}/"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group is None or is_table(self.group):
            return
        try:
            groups = re.compile(self.group).groups
        except re.error as error:
            raise ArgumentError("group", "be a regular expression", self.group, str(error)) from error
        check_argument(groups == 1, "have one capture group, e.g. '(patient[0-9]+)'", group=self.group)


@dataclass(frozen=True)
class NpzData(FileData):
    """Images in a NumPy .npz file; `capsella.data.npz` lists the layouts."""

    kind: ClassVar[str] = "npz"

    _: KW_ONLY

    label: str | None = None
    """For .npz files: the name of an array of integers that holds the class of each image, e.g. `code`, in place of the
    usual one. The array `code_names`, if there is one, names the classes."""

    @property
    def text(self) -> str:
        """The file."""
        return str(self.path)


@dataclass(frozen=True)
class NamedData(DataOptions):
    """A public data set; `capsella list data` names them all."""

    kind: ClassVar[str] = "named"

    name: str = "digits"
    """Name of the data set."""

    _: KW_ONLY

    camera: Literal["left", "right", "both"] = "left"
    """Which images of smallNORB's stereo pairs to use; both become two channels."""

    viewpoints: Literal["all", "azimuth", "elevation"] = "all"
    """For toys and smallNORB: train on a third of the azimuths or elevations, and test on the other, novel ones."""

    test_viewpoints: Literal["novel", "familiar"] = "novel"
    """With `viewpoints`: test on novel viewpoints, or on familiar ones for comparison."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, sources in _ONLY_OF.items():
            got = getattr(self, field)
            if got != getattr(NamedData, field) and self.name not in sources:
                hint = f"only {', '.join(sources)} use it"
                raise ArgumentError(field, f"stay at its default for {self.name}", got, hint)
        fits = self.viewpoints != "all" or self.test_viewpoints == "novel"
        check_argument(fits, "be novel without viewpoints", test_viewpoints=self.test_viewpoints)


@dataclass(frozen=True, kw_only=True)
class PairData(DataOptions):
    """Pairs of overlaid images of two classes, as in MultiMNIST.

    The shared fields apply to the images that the pairs are made of.
    """

    kind: ClassVar[str] = "pairs"
    is_paired: ClassVar[bool] = True

    of: str = "mnist"
    """Source of the images: a public data set, a folder or an .npz file."""

    fit: Fit | None = None  # type: ignore[assignment]  # the default of the images' source

    pair_shift: int = bounded(4, 0)
    """Maximum shift of each image in pixels, in each direction. The canvas is larger by twice as much."""

    train_pairs: int | None = bounded(None, 1)
    """Number of training pairs. Default: 1,000 for each training image."""

    validation_pairs: int | None = bounded(None, 1)
    """Number of validation pairs. Default: 1,000 for each validation image."""

    test_pairs: int | None = bounded(None, 1)
    """Number of test pairs: the first of 1,000 for each test image."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_argument(self.folds is None, "be None for pairs", folds=self.folds)
        check_argument(self.of not in ("pairs", "multimnist"), "be a source of single images", of=self.of)
        self.single()  # checks the shared fields

    def single(self) -> DataOptions:
        """Return the options of the images that the pairs are made of."""
        return self._with_fields(data_from(self.of), {field.name for field in fields(DataOptions)})

    @property
    def source(self) -> str:
        """The source of the images."""
        return self.of

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the images."""
        return self.single().paths

    def on(self, source: str) -> DataOptions:
        """Return the same options for pairs of another source's images."""
        return self if source == "pairs" else replace(self, of="mnist" if source == "multimnist" else source)


@dataclass(frozen=True)
class DomainData(DataOptions):
    """Images of several domains together, e.g. laboratories. Each domain is split separately."""

    kind: ClassVar[str] = "domains"

    domains: tuple[str, ...]
    """The domains: folders, .npz files or public data sets. Only classes that all have, by name, are used."""

    _: KW_ONLY

    fit: Fit = "pad"

    classes: tuple[str, ...] = ()
    """Use only these classes, in this order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_argument(bool(self.domains), "name at least one", domains=self.domains)
        check_argument(self.folds is None, "be None for several domains", folds=self.folds)
        check_argument(self.split_file is None, "be None for several domains", split_file=self.split_file)

    @property
    def text(self) -> str:
        """The domains, separated by commas."""
        return ",".join(self.domains)

    @property
    def paths(self) -> tuple[Path, ...]:
        """All domains, as paths; that of a public data set does not exist."""
        return tuple(map(Path, self.domains))


KINDS: dict[str, type[DataOptions]] = {
    kind.kind: kind for kind in (FolderData, NpzData, NamedData, PairData, DomainData)
}
_IDENTITY = {"path", "name", "of", "domains"}


def data_from(source: str) -> DataOptions:
    """Return the default options for a source.

    Args:
        source: a folder, an .npz file, the name of a public data set, `pairs`, or several domains separated by commas.

    >>> [data_from(source).kind for source in ("cells/", "cells.npz", "mnist", "pairs", "lab-a/,lab-b/")]
    ['folder', 'npz', 'named', 'pairs', 'domains']
    """
    path = Path(source)
    if source in ("pairs", "multimnist"):
        return PairData()
    if "," in source and not path.exists():
        return DomainData(tuple(source.split(",")))
    if path.suffix == ".npz":
        return NpzData(path)
    return FolderData(path) if path.is_dir() or path.parent != Path() or source.endswith("/") else NamedData(source)


def is_table(group: str) -> bool:
    """Return True if the field `group` names a table of files and groups."""
    return group.lower().endswith((".csv", ".tsv"))
