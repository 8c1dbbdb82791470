"""`capsella data`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from capsella.cli.flags import parse, part_of, positional, settings
from capsella.errors import CapsellaError, check_argument, pluralize
from capsella.files import write_whole
from capsella.training.flags import recipe_fields

if TYPE_CHECKING:
    from capsella.data import ClassCounts, DataOptions, Splits

    Common = dict[str, Any]
    All = dict[str, Any]
else:
    Common = settings(
        *("data.size", "data.fit", "data.channels", "data.group", "data.validation", "data.test", "data.folds"),
        *("data.split_file", "data.split_seed", "data.per_class", "data.skip_broken", "data.duplicates"),
    )
    All = settings(*(path for path in recipe_fields() if path.startswith("data.")))


@dataclass(frozen=True, kw_only=True)
class DataCommon:
    """Show what images hold, or write a split.

    capsella data show IMAGES    count them per class and split, and draw a contact sheet
    capsella data split IMAGES   write which image is in which split, for --split-file
    """

    action: Annotated[Literal["show", "split"], *positional("show|split", "What to do.")]
    images: Annotated[str, *positional("IMAGES", "A folder, an .npz file or a named source (capsella list data).")]
    out: Path | None = None
    """The contact sheet, or the split file. Default: NAME-sheet.png, or NAME-split.csv, which is not overwritten."""
    split: Literal["train", "validation", "test"] = "train"
    """The split on the contact sheet."""
    given: Common = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Data(DataCommon):
    """All flags."""

    thesis_sets: bool = False
    """With split: write the sets of Forslöv's thesis into the folder --out."""
    given: All = field(default_factory=dict)


def run(arguments: list[str]) -> None:
    """Show images, or split them."""
    options = parse(Data, arguments or ["--help"], "data")

    from capsella.data import data_from
    from capsella.data.listing import no_folder
    from capsella.training.flags import with_values

    source, name = data_from(options.images), Path(options.images).resolve().name
    if missing := [path for path in source.paths if not path.exists()]:
        raise CapsellaError(f"{no_folder(str(missing[0]))}; capsella list data names the sources")
    data = with_values(source, part_of(options.given, "data"))
    if options.action == "show":
        _show(options, data, options.out or Path(f"{name}-sheet.png"))
    elif options.thesis_sets:
        _write_thesis_sets(data, name, options.out or Path(f"{name}-sets"))
    else:
        _write_split(data, name, options)


def _show(options: Data, data: "DataOptions", out: Path) -> None:
    from capsella.data import FolderData, contact_sheet, describe, load_data, oblong_sheet, warn_of_few

    check_argument(out.suffix.lower() == ".png", "end in .png", out=str(out))
    splits = load_data(data)
    height, width = splits.image_size
    depth = "" if splits.value_range else ", 8 bits a channel"
    _print_counts(f"{splits.name}: {height}×{width}×{splits.channels}{depth}", describe(splits))
    print(*splits.notes, sep="\n", end="\n" if splits.notes else "")
    _describe_pairs(splits)
    if not data.is_paired:
        warn_of_few(splits)
    if splits.broken:
        print(f"left out {pluralize(len(splits.broken), 'broken image')}:", *splits.broken, sep="\n  ")
    sheet = contact_sheet(splits.named()[options.split])
    write_whole(out, lambda temporary: sheet.save(temporary, format="PNG"))
    print(f"contact sheet written to {out}")
    if isinstance(data, FolderData) and data.cut is None and (oblong := oblong_sheet(data)) is not None:
        path = out.with_stem(f"{out.stem}-fit")
        write_whole(path, lambda temporary: oblong.save(temporary, format="PNG"))
        print(f"oblong images, and what --fit crop, pad and squash leave of them, in {path}")


def _describe_pairs(splits: "Splits") -> None:
    from capsella.data import PairSet, overlap

    for split, pairs in splits.named().items():
        if isinstance(pairs, PairSet):
            measured = overlap(pairs)
            print(
                f"{split}: {len(pairs):,} pairs; mean overlap {100 * measured.images:.1f} % of an image's area, "
                f"{100 * measured.boxes:.1f} % of the smaller bounding box"
            )


def _write_split(data: "DataOptions", name: str, options: Data) -> None:
    from capsella.data import FolderData, NamedData, save_split

    if data.is_paired:
        raise CapsellaError(f"{name}: pairs are made from the splits of their source; split that instead")
    if not isinstance(data, FolderData):  # no pixels of a folder are read; for other sources any size will do
        both = isinstance(data, NamedData) and data.camera == "both"
        data = data.replace(size=data.size or 1, channels=None if both else 1)
    out = options.out or Path(f"{name}-split.csv")
    if options.out is None and out.exists():  # it may have been edited by hand
        raise CapsellaError(f"{out} exists; choose another name with --out, or this name to replace it")
    _print_counts(name, save_split(data, out, print))
    print(f"split written to {out}")


def _write_thesis_sets(data: "DataOptions", name: str, out: Path) -> None:
    from capsella.data import THESIS_SETS, save_thesis_sets, thesis_set

    sets = save_thesis_sets(data, out, print)
    for set_name, counts in sets.items():
        _print_counts(set_name, counts)
    for missing in (set_name for set_name in THESIS_SETS if set_name not in sets):
        print(f"left out {missing}: it has {thesis_set(missing, data).first_classes} classes, more than {name}")
    print(f"split files written to {out}")


def _print_counts(title: str, counts: "list[ClassCounts]") -> None:
    from rich.markup import escape
    from rich.table import Table

    from capsella.cli.screen import show

    table = Table("class", "train", "validation", "test", title=escape(title))
    for row in counts:
        table.add_row(*(escape(str(cell)) for cell in row))
    show(table)
