"""The images of a run: which file is in which split, also after files were added to the folder."""

import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from capsella.data import (
    DataOptions,
    FolderData,
    Splits,
    folder_files,
    load_data,
    read_split_file,
    warn_of_few,
)
from capsella.data.listing import no_folder
from capsella.data.splits import UNUSED, TableRow
from capsella.errors import CapsellaError, pluralize, warn_once
from capsella.training.run import Run, RunFolder


def keep_split(files: RunFolder, splits: Splits) -> None:
    """Write split.csv for a run on a folder: the split of each file, or that it is in none.

    Limits of a split, e.g. `test_per_class`, are not stored: they are applied again whenever the file is read.
    """
    if splits.table is not None:
        splits.table.write(files.split)


def report_splits(splits: Splits, data: DataOptions, console: Console) -> None:
    """Print what matters about the images before a training: notes, too few images of a class, broken files."""
    for note in splits.notes:
        console.print(note, markup=False, soft_wrap=True)
    if data.kind in ("folder", "npz") and not console.quiet:  # a search is quiet: it must not see test images
        warn_of_few(splits)
    if splits.broken:
        heading = f"left out {pluralize(len(splits.broken), 'broken image')}:"
        console.print(heading, *splits.broken, sep="\n  ", markup=False, soft_wrap=True)


def load_splits(run: Run, *, skip_broken: bool = False) -> Splits:
    """Return the images of a run, split as in its training; load them unless `train` kept them in memory.

    Files that were added to a folder since the training began are left out, with a warning.

    Args:
        run: a trained run.
        skip_broken: leave out test images that cannot be read any more, with a warning.

    Raises:
        CapsellaError: the images are missing, or have changed since the training began.
    """
    if run.splits is not None:
        return run.splits
    return load_run_splits(RunFolder(run.folder), run.recipe.data, skip_broken=skip_broken)


def load_run_splits(
    files: RunFolder, data: DataOptions, splits: Splits | None = None, *, skip_broken: bool = False
) -> Splits:
    """Return the images of a run folder (see `load_splits`); `splits` are images that are loaded already."""
    if isinstance(data, FolderData) and not data.path.is_dir():
        raise CapsellaError(
            f"{no_folder(data.path)}; the images of {files.path} were there: put them back, or link to where they are "
            f"now, e.g. with ln -s IMAGES {shlex.quote(str(data.path))}"
        )
    if splits is None:
        options = replace(data, skip_broken=True) if skip_broken else data
        new = _new_files(files, data)
        as_kept = files.split.exists() and (new or options.skip_broken)
        splits = (
            _load_as_kept(new, files, options) if isinstance(options, FolderData) and as_kept else load_data(options)
        )
        for line in splits.unseen:  # a training prints them with the other notes
            warn_once(f"unseen: {files.path}: {line}", f"{splits.name}: {line}")
    left_out = "" if data.skip_broken else "\n  ".join(map(str, splits.broken))
    try:
        files.check_images(splits)
    except CapsellaError as error:
        if not left_out:
            raise
        raise CapsellaError(f"{error}. These cannot be read any more:\n  {left_out}") from error
    if left_out:
        warn_once(f"broken: {files.path}", f"left out {pluralize(len(splits.broken), 'broken image')}:\n  {left_out}")
    return splits


def _new_files(files: RunFolder, data: DataOptions) -> list[str]:
    """Return the files of a folder of images that the run's split.csv does not list.

    Raises:
        CapsellaError: files that it lists are missing.
    """
    if not isinstance(data, FolderData) or not files.split.exists():
        return []
    table, present = read_split_file(files.split), folder_files(data)
    if gone := sorted(table.rows.keys() - table.unused - set(present)):
        more, them = (f" and {len(gone) - 1} more are", "them") if len(gone) > 1 else (" is", "it")
        raise CapsellaError(
            f"{files.path}: {data.path} has changed since this training began: {gone[0]}{more} gone; put {them} back, "
            "or train again"
        )
    return [file for file in present if file not in table.rows]


def _load_as_kept(new: Sequence[str], files: RunFolder, data: FolderData) -> Splits:
    """Load the images of a folder, split as in split.csv, and warn about new files."""
    table = read_split_file(files.split)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "split.csv"
        table._replace(rows={**table.rows, **{file: TableRow(0, UNUSED, None) for file in new}}).write(path)
        splits = load_data(replace(data, split_file=path, duplicates="ignore", folds=None, fold=None))
    if new:
        text = f"left out {pluralize(len(new), 'file')} added to {data.path} since this training began, e.g. {new[0]}"
        warn_once(f"new: {files.path}", text)
    return splits
