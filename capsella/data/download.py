"""Find the files of data sets, or download them with a checksum and a progress bar."""

import gzip
import os
import shutil
import zlib
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import pooch
from rich.console import Console
from rich.progress import wrap_file

from capsella.errors import CapsellaError


def data_root() -> Path:
    """Return the folder of the data sets: the environment variable CAPSELLA_DATA, or else the user's cache folder."""
    return Path(os.environ.get("CAPSELLA_DATA") or pooch.os_cache("capsella")).expanduser()


def find_or_download(
    file: str, mirrors: Sequence[str] = (), checksum: str | None = None, instead: str = "put it there by hand"
) -> Path:
    """Return the path of `file` below the data root; download it from the first mirror that has it if it is missing.

    Args:
        file: relative to the data root.
        mirrors: URLs of the file, tried in order; none for sets without a public mirror.
        checksum: `sha256:…` or `md5:…` of the file; None if none is published.
        instead: how else to get it, for the error.

    Raises:
        CapsellaError: no mirror gives the file, the checksum is wrong, or it cannot be written.
    """
    path = data_root() / file
    if path.is_file():
        return path
    failures = ""
    for url in mirrors:
        try:
            pooch.retrieve(url, checksum, path.name, path.parent, downloader=_download)
            return path
        except (OSError, HTTPException, ValueError) as error:  # a wrong checksum is a ValueError
            failures += f"\n  tried {url}: {error}"
    raise CapsellaError(f"{path} is not there; {instead}, or set CAPSELLA_DATA to a folder that has {file}{failures}")


def _download(url: str, target: str, _: object) -> None:
    """Download a file with a progress bar, for pooch."""
    console = Console(stderr=True)
    with urlopen(url, timeout=30) as response, open(target, "wb") as file:
        size = int(response.headers.get("Content-Length", 0))
        hidden = not console.is_terminal
        with wrap_file(response, size, description=Path(url).name, console=console, disable=hidden) as source:
            shutil.copyfileobj(source, file)
        if size and file.tell() != size:
            raise OSError(f"the download ended after {file.tell():,} of {size:,} bytes")


def gunzip(path: Path, most: int) -> bytes:
    """Return a gzip file's contents; raise `CapsellaError` if it is damaged or unpacks to more than `most` bytes."""
    try:
        with gzip.open(path) as file:
            content = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        text = f"{path}: cannot be unpacked with gzip ({error}); delete it to have it downloaded"
        raise CapsellaError(text) from error
    if len(content) > most:
        raise CapsellaError(f"{path}: must not unpack to more than {most:,} bytes; this is not the expected data set")
    return content
