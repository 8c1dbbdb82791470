"""`capsella data list`, `capsella data show NAME` and `capsella data split NAME`."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from capsella.cli.screen import list_entries, show
from capsella.data import (
    THESIS_SETS,
    ClassCounts,
    DataOptions,
    FolderData,
    NamedData,
    PairSet,
    Splits,
    contact_sheet,
    data_from,
    data_root,
    describe,
    drawing_speed,
    load_data,
    overlap,
    save_split,
    save_thesis_sets,
    source_table,
    thesis_set,
    too_few,
)
from capsella.errors import ArgumentError, CapsellaError, check_argument, pluralize
from capsella.files import write_whole

USAGE = """usage: capsella data list
       capsella data show NAME [--size N] … [--out SHEET.png]
       capsella data split NAME [--per-class N] … [--thesis-sets] [--out FILE]

list    names the sources, and says where their files are
show    counts the images of each class and split, and draws a contact sheet;
        for pairs it also measures how much their images overlap
split   writes which image is in which split, for --data.split-file

Images of your own: capsella data show FOLDER
Pairs of images:    capsella data show pairs --of SOURCE
"""
HELP = ("-h", "--help")


@dataclass(frozen=True)
class Show:
    """Count the images of each class and split, and draw a contact sheet."""

    data: Annotated[DataOptions, tyro.conf.arg(name="")] = field(default_factory=NamedData)
    split: Literal["train", "validation", "test"] = "train"
    """The split on the contact sheet."""
    out: Path | None = None
    """The contact sheet; default: NAME-sheet.png."""


@dataclass(frozen=True)
class Split:
    """Write which image is in which split, as a CSV file for --data.split-file.

    Of a folder's files the headers are read, and pixels only to look for copies.
    --duplicates ignore leaves that out.
    """

    data: Annotated[DataOptions, tyro.conf.arg(name="")] = field(default_factory=NamedData)
    thesis_sets: bool = False
    """Write the sets of Forslöv's thesis, a file each: mini, small, medium-size, basic, medium and hard."""
    out: Path | None = None
    """The file, or the folder of the sets; default: NAME-split.csv, which is not overwritten, or NAME-sets."""


def run(arguments: list[str]) -> None:
    """List the sources, or show one."""
    action, words = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if action in HELP or (action == "list" and set(words) & set(HELP)):
        print(USAGE)
    elif action == "list" and not words:
        _list()
    elif action == "show" and words and not words[0].startswith("-"):
        _show(words[0], words[1:])
    elif action == "split" and words and not words[0].startswith("-"):
        _split(words[0], words[1:])
    elif action in ("show", "split"):
        tyro.cli(Show if action == "show" else Split, args=words, prog=f"capsella data {action} NAME")
        raise ValueError(f"{action}: must be followed by the name of a source; `capsella data list` names them")
    else:
        got = shlex.join(arguments)
        raise ArgumentError("data", "be followed by list, by show NAME or by split NAME", got)


def _list() -> None:
    rows = [(row.name, f"{row.images}; {row.size}; {row.classes} classes; {row.found}") for row in source_table()]
    print(f"data root: {data_root()}\n")
    list_entries({"train / validation / test images; height × width × channels": rows})
    print("\nyour own images, with a sub-folder for each class: --data FOLDER/")
    print("your own images in an .npz file: --data FILE.npz")
    print("pairs of the images of any source: --data pairs --data.of SOURCE")


def _show(name: str, words: list[str]) -> None:
    options = tyro.cli(Show, default=Show(data_from(name)), args=words, prog=f"capsella data show {name}")
    out = options.out or Path(f"{Path(name).resolve().name}-sheet.png")  # no name of a photograph
    check_argument(out.suffix.lower() == ".png", "end in .png", out=str(out))
    splits = load_data(options.data)
    height, width = splits.image_size
    depth = "" if splits.value_range else ", 8 bits a channel"
    _print_counts(f"{splits.name}: {height}×{width}×{splits.channels}{depth}", describe(splits))
    print(*splits.notes, sep="\n", end="\n" if splits.notes else "")
    _describe_pairs(splits)
    for sentence in () if options.data.is_paired else too_few(splits):
        show(Text(f"WARNING: {sentence}", style="bold red"))
    if splits.broken:
        print(f"left out {pluralize(len(splits.broken), 'broken image')}:", *splits.broken, sep="\n  ")
    sheet = contact_sheet(splits.named()[options.split])
    write_whole(out, lambda temporary: sheet.save(temporary, format="PNG"))
    print(f"contact sheet written to {out}")


def _describe_pairs(splits: Splits) -> None:
    for split, pairs in splits.named().items():
        if isinstance(pairs, PairSet):
            measured = overlap(pairs)
            print(
                f"{split}: {len(pairs):,} pairs; mean overlap {100 * measured.images:.1f} % of an image's area, "
                f"{100 * measured.boxes:.1f} % of the smaller bounding box"
            )
    if isinstance(splits.train, PairSet):
        print(f"drawn alone at {drawing_speed(splits.train):,.0f} a second of processor time")


def _split(name: str, words: list[str]) -> None:
    options = tyro.cli(Split, default=Split(data_from(name)), args=words, prog=f"capsella data split {name}")
    data, name = options.data, Path(name).resolve().name
    if data.is_paired:
        raise CapsellaError(f"{name}: must be single images to be split, got pairs, made of a source's splits")
    if not isinstance(data, FolderData):  # no pixels of a folder are read; for other sources any size will do
        both = isinstance(data, NamedData) and data.camera == "both"
        data = data.replace(size=data.size or 1, channels=None if both else 1)
    if options.thesis_sets:
        out = options.out or Path(f"{name}-sets")
        sets = save_thesis_sets(data, out, print)
        for set_name, counts in sets.items():
            _print_counts(set_name, counts)
        for missing in (set_name for set_name in THESIS_SETS if set_name not in sets):
            classes = thesis_set(missing, data).first_classes
            print(f"left out {missing}: it has {classes} classes, more than {name}")
        print(f"split files written to {out}")
    else:
        out = options.out or Path(f"{name}-split.csv")
        if options.out is None and out.exists():  # it may have been edited by hand
            raise CapsellaError(f"{out} is there already; give it another name with --out, or this one to replace it")
        _print_counts(name, save_split(data, out, print))
        print(f"split written to {out}")


def _print_counts(title: str, counts: list[ClassCounts]) -> None:
    table = Table("class", "train", "validation", "test", title=escape(title))
    for row in counts:
        table.add_row(*(escape(str(cell)) for cell in row))
    show(table)
