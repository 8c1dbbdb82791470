"""Find the files of data sets, or download them with a checksum and a progress bar; unpack them within limits."""

import gzip
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pooch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from capsella.errors import CapsellaError

# A .npz file may unpack to this many bytes, a larger one to MAX_RATIO times its size: deflate packs zeros to a
# thousandth, drawings to a tenth.
MAX_BYTES, MAX_RATIO = 1_000_000_000, 200


def data_root() -> Path:
    """Return the folder of the data sets: the environment variable CAPSELLA_DATA, or else the user's cache folder."""
    return Path(os.environ.get("CAPSELLA_DATA") or pooch.os_cache("capsella")).expanduser()


def find_or_download(file: str, mirrors: Sequence[str], checksum: str | None, instead: str = "") -> Path:
    """Return the path of `file` below the data root; download it from the first mirror that has it if it is missing.

    Args:
        file: relative to the data root.
        mirrors: URLs of the file, tried in order.
        checksum: `sha256:…` or `md5:…` of the file; None if none is published.
        instead: a sentence about an alternative, for the error, with a space at its end.

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
    """Return the path of `file` below the data root, for sets without a public mirror.

    Raises:
        CapsellaError: it is missing; the text tells how to get it.
    """
    path = data_root() / file
    if not path.is_file():
        raise CapsellaError(f"{path} is not there; {get}, or set CAPSELLA_DATA to a folder that has {file}")
    return path


class _Bar:
    """rich's progress bar with the four methods that pooch calls."""

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


def gunzip(path: Path, most: int) -> bytes:
    """Return the contents of a gzip file.

    Args:
        path: the file.
        most: maximum number of bytes to unpack.

    Raises:
        CapsellaError: it unpacks to more than that.
        OSError, EOFError, zlib.error: it cannot be read.
    """
    with gzip.open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise CapsellaError(f"{path}: must not unpack to more than {most:,} bytes; this is not the expected data set")
    return content


def check_archive(path: Path) -> None:
    """Check that a zip file, such as a .npz file, unpacks to no more than images would; reads its directory only.

    Raises:
        CapsellaError: it unpacks to more than `MAX_BYTES`, and to more than `MAX_RATIO` times its size.
        zipfile.BadZipFile, OSError: it cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    packed = path.stat().st_size
    if size > max(MAX_BYTES, MAX_RATIO * packed):
        raise CapsellaError(
            f"{path}: must not unpack to more than {MAX_RATIO} times its size, got {packed:,} bytes for {size:,}"
        )
