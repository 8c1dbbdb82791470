"""Where data sets lie, and how they get there: looked for first, else downloaded with a checksum and a progress bar."""

import os
from collections.abc import Sequence
from pathlib import Path

import pooch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from capsella.errors import CapsellaError


def data_root() -> Path:
    """The folder of the data sets: the environment variable CAPSELLA_DATA, or else the user's cache folder."""
    return Path(os.environ.get("CAPSELLA_DATA") or pooch.os_cache("capsella")).expanduser()


def find_or_download(file: str, mirrors: Sequence[str], checksum: str | None, instead: str = "") -> Path:
    """The path of `file` below the data root, downloaded from the first mirror that has it where it is not there yet.

    Args:
        file: relative to the data root.
        mirrors: URLs of the file, tried in order.
        checksum: of the file, as `sha256:…` or `md5:…`; a download must match it. None where none is published.
        instead: one more sentence for the error, on what else would do, with a space behind it.

    Raises:
        CapsellaError: no mirror gives the file, the checksum is wrong, or it cannot be written.
    """
    path = data_root() / file
    if path.is_file():
        return path
    failures = []
    for url in mirrors:
        try:
            with _Bar(path.name) as bar:
                downloader = pooch.HTTPDownloader(progressbar=bar, timeout=30)
                pooch.retrieve(url, checksum, path.name, path.parent, downloader=downloader)
            return path
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
            failures.append(f"{url}: {error}")
    raise CapsellaError(
        f"{path} is not there and could not be downloaded; put it there by hand, "
        f"or set CAPSELLA_DATA to a folder that has {file}. {instead}Tried:\n  " + "\n  ".join(failures)
    )


def find(file: str, get: str) -> Path:
    """The path of `file` below the data root, for sets that no public mirror offers.

    Raises:
        CapsellaError: it is not there; says how to get it.
    """
    path = data_root() / file
    if not path.is_file():
        raise CapsellaError(f"{path} is not there; {get}, or set CAPSELLA_DATA to a folder that has {file}")
    return path


class _Bar:
    """rich's progress bar behind the four names that pooch calls."""

    def __init__(self, label: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(label, total=None)
        self.total = 0

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, amount: int) -> None:
        self._progress.update(self._task, total=self.total, advance=amount)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()
