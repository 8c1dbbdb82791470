"""`capsella data list`, `capsella data show NAME` and `capsella data split NAME`."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from capsella.data import (
    THESIS_SETS,
    ClassCounts,
    DataOptions,
    PairSet,
    Splits,
    contact_sheet,
    data_root,
    describe,
    drawing_speed,
    load_data,
    overlap,
    save_split,
    save_thesis_sets,
    source_table,
    thesis_set,
)
from capsella.files import write_whole

USAGE = """usage: capsella data list
       capsella data show NAME [--size N] [--path FOLDER] … [--out SHEET.png]
       capsella data split NAME [--per-class N] [--path FOLDER] … [--thesis-sets] [--out SPLIT.csv]

`list` names the sources and says where their files are; `show` counts images per class and split, and draws a contact
sheet; `split` writes which image is in which split, for --data.split-file. For your own images:
capsella data show folder --path FOLDER
Of pairs (multimnist, or `multi --of NAME`) `show` also measures how much their images overlap.
"""


HELP = ("-h", "--help")


@dataclass(frozen=True)
class Show:
    """Count the images of each class and split, and draw a contact sheet."""

    data: Annotated[DataOptions, tyro.conf.arg(name="")] = field(default_factory=DataOptions)
    split: Literal["train", "validation", "test"] = "train"
    """Whose images the contact sheet shows."""
    out: Path | None = None
    """The contact sheet; default: NAME.png here."""


@dataclass(frozen=True)
class Split:
    """Write which image is for training, validation or test, or unused, as a CSV file that --data.split-file reads."""

    data: Annotated[DataOptions, tyro.conf.arg(name="")] = field(default_factory=DataOptions)
    thesis_sets: bool = False
    """Write a folder of files: the sets mini, small, medium-size, basic, medium and hard of Forslöv's thesis."""
    out: Path | None = None
    """The file, or the folder of the sets; default: NAME-split.csv, or NAME-sets, here."""


def run(arguments: list[str]) -> None:
    """List the sources, or show one."""
    console = Console(highlight=False, markup=False)
    action, words = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if action in HELP or (action == "list" and set(words) & set(HELP)):
        console.print(USAGE, soft_wrap=True)
    elif action == "list" and not words:
        _list(console)
    elif action == "show" and words and not words[0].startswith("-"):
        _show(words[0], words[1:], console)
    elif action == "split" and words and not words[0].startswith("-"):
        _split(words[0], words[1:], console)
    elif action in ("show", "split"):
        tyro.cli(Show if action == "show" else Split, args=words, prog=f"capsella data {action} NAME")
        raise ValueError(f"{action}: must be followed by the name of a source; `capsella data list` names them")
    else:
        raise ValueError(
            f"data: must be followed by list, by show NAME or by split NAME, got {shlex.join(arguments)!r}"
        )


def _list(console: Console) -> None:
    table = Table("name", "train / validation / test", "size", "classes", "where", title=f"data root: {data_root()}")
    for row in source_table():
        table.add_row(row.name, row.images, row.size, str(row.classes), row.found)
    console.print(table)
    console.print("your own images: --data.name folder --data.path FOLDER (a sub-folder a class), or npz")
    console.print("pairs of any of them, one over the other: --data.name multi --data.of NAME")


def _show(name: str, words: list[str], console: Console) -> None:
    # tyro would build the default options first, and those of `folder` are not complete without their path.
    words = ["--name", name, *words]
    options = tyro.cli(Show, args=words, prog=f"capsella data show {name}")
    splits = load_data(options.data)
    height, width = splits.image_size
    _print_counts(f"{splits.name}: {height}×{width}×{splits.channels}", describe(splits), console)
    _describe_pairs(splits, console)
    if splits.broken:
        console.print(f"left out {len(splits.broken)} broken images:", *splits.broken, sep="\n  ", soft_wrap=True)
    out = options.out or Path(f"{name}.png")
    sheet = contact_sheet(splits.named()[options.split])
    write_whole(out, lambda temporary: sheet.save(temporary, format="PNG"))
    console.print(f"contact sheet written to {out}", soft_wrap=True)


def _describe_pairs(splits: Splits, console: Console) -> None:
    for split, pairs in splits.named().items():
        if isinstance(pairs, PairSet):
            measured = overlap(pairs)
            console.print(
                f"{split}: {len(pairs):,} pairs; mean overlap {100 * measured.images:.1f} % of an image's area, "
                f"{100 * measured.boxes:.1f} % of the smaller bounding box"
            )
    if isinstance(splits.train, PairSet):
        console.print(f"drawn alone at {drawing_speed(splits.train):,.0f} a second of processor time")


def _split(name: str, words: list[str], console: Console) -> None:
    options = tyro.cli(Split, args=["--name", name, *words], prog=f"capsella data split {name}")
    if options.thesis_sets:
        out = options.out or Path(f"{name}-sets")
        sets = save_thesis_sets(options.data, out)
        for set_name, counts in sets.items():
            _print_counts(set_name, counts, console)
        for missing in (set_name for set_name in THESIS_SETS if set_name not in sets):
            classes = thesis_set(missing, options.data).first_classes
            console.print(f"left out {missing}: it has {classes} classes, more than {name}")
        console.print(f"split files written to {out}", soft_wrap=True)
    else:
        out = options.out or Path(f"{name}-split.csv")
        _print_counts(name, save_split(options.data, out), console)
        console.print(f"split written to {out}", soft_wrap=True)


def _print_counts(title: str, counts: list[ClassCounts], console: Console) -> None:
    table = Table("class", "train", "validation", "test", title=title)
    for row in counts:
        table.add_row(*map(str, row))
    console.print(table)
