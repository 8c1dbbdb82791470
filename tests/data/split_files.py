"""Split files of a test's own making; `save_split` writes those of options."""

from pathlib import Path

from capsella.data import Splits
from capsella.files import write_csv


def write_split_file(splits: Splits, path: Path) -> None:
    """List the files of `splits`, for `split_file` in `DataOptions`."""
    rows = [(file, split) for split, images in splits.named().items() for file in images.files or ()]
    write_csv(path, ("file", "split"), rows)
