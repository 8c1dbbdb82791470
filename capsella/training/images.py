"""The images that a run learned from, validates and tests on, also where files came to their folder since."""

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
    SplitTable,
    folder_files,
    load_data,
    read_split_file,
    save_split,
    warn_of_few,
)
from capsella.data.listing import no_folder
from capsella.data.split.table import UNUSED, Row
from capsella.errors import CapsellaError, pluralize, warn_once
from capsella.training.run import Run, RunFolder


def keep_split(files: RunFolder, data: DataOptions, splits: Splits) -> None:
    """Write split.csv for a run on a folder: which file is in which split, or in none.

    What limits a split, as `test_per_class`, is not in it: it thins the split out anew whenever that is read.
    """
    if not isinstance(data, FolderData):
        return
    rows = {file: Row(0, UNUSED, None) for file in folder_files(data)}
    whole = replace(data, per_class=None, validation_per_class=None, test_per_class=None, first_classes=None)
    if whole == data:
        for split, images in splits.named().items():
            rows |= {file: Row(0, split, None) for file in images.files or ()}
    else:
        save_split(whole, files.split)
        rows |= read_split_file(files.split).rows
    SplitTable(True, rows).write(files.split)


def say_of_images(splits: Splits, own: bool, console: Console) -> None:
    """What must be known of the images before a training: notes, the broken ones, and of one's own, what is too few."""
    for note in splits.notes:
        console.print(note, markup=False, soft_wrap=True)
    if own and not console.quiet:  # a search, which may not so much as count the test images, is quiet
        warn_of_few(splits)
    if splits.broken:
        heading = f"left out {pluralize(len(splits.broken), 'broken image')}:"
        console.print(heading, *splits.broken, sep="\n  ", markup=False, soft_wrap=True)


def own_splits(run: Run, *, skip_broken: bool = False) -> Splits:
    """The images of a run, split as for its training. Files that came to a folder since are left out, with a warning.

    skip_broken: leave out test images that cannot be read any more, with a warning.

    Raises:
        CapsellaError: they are not there, or have changed since the training began.
    """
    return images_of(RunFolder(run.folder), run.recipe.data, skip_broken=skip_broken)


def images_of(
    files: RunFolder, data: DataOptions, splits: Splits | None = None, *, skip_broken: bool = False
) -> Splits:
    """As `own_splits`, of a run that may not be trained yet. splits: where they are loaded already."""
    if isinstance(data, FolderData) and not data.path.is_dir():
        raise CapsellaError(
            f"{no_folder(data.path)}; the images of {files.path} were there: put them back, or make a link to where "
            f"they are now, as with ln -s IMAGES {shlex.quote(str(data.path))}"
        )
    if splits is None:
        asked = replace(data, skip_broken=True) if skip_broken else data
        new = _new_files(files, data)
        as_kept = files.split.exists() and (new or asked.skip_broken)
        splits = _as_kept(new, files, asked) if isinstance(asked, FolderData) and as_kept else load_data(asked)
    left_out = "" if data.skip_broken else "\n  ".join(map(str, splits.broken))
    try:
        files.check_images(splits)
    except CapsellaError as error:
        if not left_out:
            raise
        raise CapsellaError(f"{error}. Some cannot be read any more:\n  {left_out}") from error
    if left_out:
        warn_once(f"broken: {files.path}", f"left out {pluralize(len(splits.broken), 'broken image')}:\n  {left_out}")
    return splits


def _new_files(files: RunFolder, data: DataOptions) -> list[str]:
    """Those of a folder that split.csv of the run does not have.

    Raises:
        CapsellaError: some that it has are gone.
    """
    if not isinstance(data, FolderData) or not files.split.exists():
        return []
    table, there = read_split_file(files.split), folder_files(data)
    if gone := sorted(table.rows.keys() - table.unused - set(there)):
        more, them = (f" and {len(gone) - 1} more are", "them") if len(gone) > 1 else (" is", "it")
        raise CapsellaError(
            f"{files.path}: {data.path} has changed since this training began: {gone[0]}{more} gone; put {them} back, "
            "or train anew"
        )
    return [file for file in there if file not in table.rows]


def _as_kept(new: Sequence[str], files: RunFolder, data: FolderData) -> Splits:
    """The images of a folder as split.csv of the run has them, and a warning of those that are new, if any."""
    table = read_split_file(files.split)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "split.csv"
        table._replace(rows={**table.rows, **{file: Row(0, UNUSED, None) for file in new}}).write(path)
        splits = load_data(replace(data, split_file=path, duplicates="ignore", folds=None, fold=None))
    if new:
        what = f"left out {pluralize(len(new), 'file')} that came to {data.path} since this training began, as {new[0]}"
        warn_once(f"new: {files.path}", what)
    return splits
