"""`capsella data`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from capsella.cli.flags import parse, part_of, positional, settings
from capsella.cli.screen import show
from capsella.errors import CapsellaError, check_argument, pluralize
from capsella.files import write_whole
from capsella.training.registry import recipe_fields

if TYPE_CHECKING:
    from capsella.data import DataOptions

COMMON = (
    *("data.size", "data.fit", "data.channels", "data.group", "data.validation", "data.test", "data.folds"),
    *("data.split_file", "data.split_seed", "data.per_class", "data.skip_broken", "data.duplicates"),
)
ALL = [path for path in recipe_fields() if path.startswith("data.")]


@dataclass(frozen=True, kw_only=True)
class DataCommon:
    """Show the images of a data set, or write its split to a file.

        capsella data show IMAGES    count images per class and split, and draw a contact sheet
        capsella data split IMAGES   write each image's split to a file for --split-file

    Images are read and split as in capsella train with the same options.
    """

    action: Annotated[Literal["show", "split"], *positional("show|split", "What to do.")]
    images: Annotated[str, *positional("IMAGES", "A folder, an .npz file or a named data set (capsella list data).")]
    out: Path | None = None
    """The contact sheet or the split file. Default: NAME-sheet.png or NAME-split.csv."""
    given: settings(*COMMON) = field(default_factory=dict)  # type: ignore[valid-type]


@dataclass(frozen=True, kw_only=True)
class Data(DataCommon):
    """All flags."""

    given: settings(*ALL) = field(default_factory=dict)  # type: ignore[valid-type]


def run(arguments: list[str]) -> None:
    """Show images, or split them."""
    options = parse(Data, arguments or ["--help"], "data")

    from capsella.data import data_from
    from capsella.data.folder import no_folder
    from capsella.training.registry import with_values

    source, name = data_from(options.images), Path(options.images).resolve().name
    if missing := [path for path in source.paths if not path.exists()]:
        raise CapsellaError(f"{no_folder(str(missing[0]))}; `capsella list data` lists named data sets")
    data = with_values(source, part_of(options.given, "data"))
    if options.action == "show":
        _show(options, data, options.out or Path(f"{name}-sheet.png"))
    else:
        _write_split(data, name, options)


def _show(options: Data, data: "DataOptions", out: Path) -> None:
    from capsella.data import (
        FolderData,
        contact_sheet,
        describe,
        load_data,
        oblong_sheet,
        warn_of_few,
    )
    from capsella.report.terminal import counts_table

    check_argument(out.suffix.lower() == ".png", "end in .png", out=str(out))
    splits = load_data(data)
    height, width = splits.image_size
    depth = "" if splits.value_range else ", 8 bits per channel"
    show(counts_table(f"{splits.name}: {height}×{width}×{splits.channels}{depth}", describe(splits)))
    print(*splits.notes, sep="\n", end="\n" if splits.notes else "")
    if not data.is_paired:
        warn_of_few(splits)
    if splits.broken:
        print(f"left out {pluralize(len(splits.broken), 'broken image')}:", *splits.broken, sep="\n  ")
    sheet = contact_sheet(splits.train)
    write_whole(out, lambda temporary: sheet.save(temporary, format="PNG"))
    print(f"contact sheet written to {out}")
    sets = [images for images in splits.named().values() if isinstance(data, FolderData) and data.cut is None]
    files = sorted(data.paths[0] / file for images in sets for file in images.files or ())
    if (oblong := oblong_sheet(files, data.size)) is not None:
        path = out.with_stem(f"{out.stem}-fit")
        write_whole(path, lambda temporary: oblong.save(temporary, format="PNG"))
        print(f"oblong images with --fit crop, pad and squash: {path}")


def _write_split(data: "DataOptions", name: str, options: Data) -> None:
    from capsella.data import save_split
    from capsella.report.terminal import counts_table

    if data.is_paired:
        raise CapsellaError(f"{name}: pairs follow the split of their images; split those instead")
    out = options.out or Path(f"{name}-split.csv")
    if options.out is None and out.exists():  # it may have been edited by hand
        raise CapsellaError(f"{out} exists; choose another file with --out, or name this one to replace it")
    show(counts_table(name, save_split(data, out, print)))
    print(f"split written to {out}")
