"""`capsella data list` and `capsella data show NAME`."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from capsella.data import (
    DataOptions,
    PairSet,
    Splits,
    contact_sheet,
    data_root,
    describe,
    load_data,
    overlap,
    source_table,
)
from capsella.files import write_whole

USAGE = """usage: capsella data list
       capsella data show NAME [--size N] [--path FOLDER] … [--out SHEET.png]

`list` names the sources and says where their files are; `show` counts images per class and split, and draws a contact
sheet. For your own images: capsella data show folder --path FOLDER
Of pairs (multimnist, or `multi --of NAME`) it also measures how much their images overlap.
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
    elif action == "show":
        tyro.cli(Show, args=words, prog="capsella data show NAME")
        raise ValueError("show: must be followed by the name of a source; `capsella data list` names them")
    else:
        raise ValueError(f"data: must be followed by list or by show NAME, got {shlex.join(arguments)!r}")


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
    table = Table("class", "train", "validation", "test", title=f"{splits.name}: {height}×{width}×{splits.channels}")
    for row in describe(splits):
        table.add_row(*map(str, row))
    console.print(table)
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
