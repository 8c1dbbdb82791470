"""Packed files: read whole, unless a few bytes unpack to more than any image needs."""

import gzip
import zipfile
from pathlib import Path

from capsella.errors import CapsellaError

MOST_BYTES = 1_000_000_000
"""A .npz file that unpacks to more is refused if images cannot be packed so well."""
MOST_RATIO = 200
"""Times its size that a larger .npz file may unpack to; deflate makes at most a thousandth of zeros, a tenth of
drawings."""


def gunzip(path: Path, most: int) -> bytes:
    """What a gzip file holds.

    Args:
        path: the file.
        most: bytes; no more are unpacked.

    Raises:
        CapsellaError: it unpacks to more than that.
        OSError, EOFError, zlib.error: it cannot be read.
    """
    with gzip.open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise CapsellaError(f"{path}: must not unpack to more than {most:,} bytes; this is no such set of images")
    return content


def check_archive(path: Path) -> None:
    """A zip file, as .npz files are, says that it unpacks to no more than images would; reads its list alone.

    Raises:
        CapsellaError: it unpacks to more than `MOST_BYTES`, and to more than `MOST_RATIO` times its size.
        zipfile.BadZipFile, OSError: it cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    packed = path.stat().st_size
    if size > max(MOST_BYTES, MOST_RATIO * packed):
        raise CapsellaError(
            f"{path}: must not unpack to more than {MOST_RATIO} times its size, got {packed:,} bytes for {size:,}"
        )
