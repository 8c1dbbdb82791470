"""`capsella predict`."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from capsella.cli.screen import console
from capsella.evaluation import Broken, predict_files, predict_table, print_table
from capsella.training import Run, load_run


@dataclass(frozen=True)
class Predict:
    """Classify images into a table: file, class, and the activation of every class.

    With --out, images that cannot be read are listed in OUT.broken.csv.

    With --resume, an interrupted call goes on where it stopped.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATHS…")]
    """Image files, or folders to look for images in."""
    out: Path | None = None
    """The table: a .csv, .jsonl or .parquet file; default: CSV to standard output."""
    resume: bool = False
    """Go on with a table that an earlier call left unfinished; begin it if there is none."""
    overwrite: bool = False
    """Replace a table that exists."""
    workers: int | None = None
    """Processes that decode images; 0 decodes in this one. Default: one less than there are cores, at most 8."""
    batch_size: int = 64
    """Images at a time."""
    skip_broken: bool = False
    """Leave out images that cannot be read, and list them at the end. With --out they are always left out."""


def run(arguments: list[str]) -> None:
    """Predict and write."""
    options = tyro.cli(Predict, args=arguments, prog="capsella predict")
    if not options.paths:
        raise ValueError("paths: must name at least one image or folder")
    if options.out is None and (options.resume or options.overwrite):
        raise ValueError("resume, overwrite: must come with --out; standard output is neither resumed nor replaced")
    errors = console(stderr=True)
    if options.out is None:
        _to_standard_output(options, errors)
    else:
        _to_table(options, options.out, errors)


def _to_standard_output(options: Predict, errors: Console) -> None:
    trained = load_run(options.run)
    broken: list[Broken] | None = [] if options.skip_broken else None
    predictions = predict_files(
        trained.model,
        options.paths,
        batch_size=options.batch_size,
        workers=options.workers or 0,
        broken=broken,
        classes=_classes_an_image(trained),
    )
    print_table(predictions, trained.model.classes)
    if broken:
        lines = (f"{_printable(str(entry.file))}: {_printable(entry.reason)}" for entry in broken)
        errors.print(f"left out {len(broken)} broken images:", *lines, sep="\n  ", soft_wrap=True, markup=False)


def _to_table(options: Predict, out: Path, errors: Console) -> None:
    began = time.monotonic()
    trained = load_run(options.run)
    written = predict_table(
        trained.model,
        options.paths,
        out,
        batch_size=options.batch_size,
        workers=options.workers,
        resume=options.resume,
        overwrite=options.overwrite,
        classes=_classes_an_image(trained),
        console=errors,
    )
    seconds = time.monotonic() - began
    lines = [f"{written.rows} predictions written to {out} in {seconds:.0f} s"]
    if written.broken_table:
        lines.append(f"{written.broken} broken images listed in {written.broken_table}")
    errors.print(*lines, sep="\n", soft_wrap=True, markup=False)


def _classes_an_image(trained: Run) -> int:
    return 2 if trained.recipe.data.is_paired else 1


def _printable(text: str) -> str:
    """A name can hold line breaks, and what commands a terminal."""
    return text if text.isprintable() else repr(text)
