"""The parts of a long prediction: which names, or images as bytes, a worker predicts together."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

from capsella.errors import CapsellaError
from capsella.evaluation.prediction.listing import LIST, image_files, listed
from capsella.evaluation.prediction.names import Names
from capsella.evaluation.shards.urls import Content, exists, is_image, is_url, opened, walk

NAMES = "_names.parquet"
"""In the folder of the output until the end: the names of all folders and lists, a row group a part."""
TABLE = ".parquet"
"""The ending of an input that holds paths, or images as bytes."""
_ROWS = 1024  # that are read at a time


@dataclass(frozen=True)
class Part:
    """One row group of a Parquet file, with so many rows, and the number of its shard of the output."""

    number: int
    table: str
    group: int
    rows: int

    @property
    def shard(self) -> str:
        """Name of its file in the output."""
        return f"part-{self.number:06}.parquet"

    def items(self) -> Iterator[tuple[str, Content | None]]:
        """Each image's name, and its bytes where the table has them; the name is then its path, or its row.

        Raises:
            CapsellaError: the table has neither a column `path` nor a column `bytes`.
        """
        import pyarrow.parquet

        with opened(self.table) as file, pyarrow.parquet.ParquetFile(file) as table:
            columns = [name for name in ("path", "bytes") if name in table.schema_arrow.names]
            if not columns:
                raise CapsellaError(f"{self.table}: must have a column path or bytes, got {table.schema_arrow.names}")
            row = sum(table.metadata.row_group(group).num_rows for group in range(self.group))
            for batch in table.iter_batches(_ROWS, row_groups=[self.group], columns=columns):
                for record in batch.to_pylist():
                    content = record.get("bytes")
                    name = record.get("path") or f"{self.table}#{row}"
                    yield name, None if content is None else Content(content, name)
                    row += 1


def write_names(paths: Sequence[str], out: Path, size: int) -> int:
    """Write the names of all images that folders, lists and files name, `size` a row group; returns how many there are.

    Each name is there once. Names that are not UTF-8 cannot be kept in Parquet.

    Raises:
        CapsellaError: a folder or list without an image; a name that is not UTF-8; nothing is there.
    """
    import pyarrow
    import pyarrow.parquet

    schema, seen, number = pyarrow.schema([("path", pyarrow.string())]), Names(), 0
    is_folder = len(paths) == 1 and not paths[0].endswith(LIST)  # one alone names nothing twice
    names = (name for path in paths for name in _named_by(path) if is_folder or seen.add(name))
    with pyarrow.parquet.ParquetWriter(str(out), schema) as writer:
        while group := list(islice(names, size)):
            try:
                writer.write_table(pyarrow.table({"path": group}, schema=schema), row_group_size=size)
            except UnicodeEncodeError as error:
                raise CapsellaError(f"{error.object!r}: the name is not UTF-8; rename it, or predict here") from error
            number += len(group)
    return number


def parts_of(tables: Iterable[str]) -> list[Part]:
    """Every row group of every table, numbered on.

    Raises:
        CapsellaError: a table that cannot be read.
    """
    found: list[Part] = []
    for name in tables:
        data = _metadata(name)
        rows = [data.row_group(group).num_rows for group in range(data.num_row_groups)]
        found += [Part(len(found) + group, name, group, number) for group, number in enumerate(rows)]
    return found


def digest_of(table: str) -> str:
    """Of what the end of a table says of its rows: where they are, how long, the least and the last of them.

    Raises:
        CapsellaError: the table cannot be read.
    """
    size = _metadata(table).serialized_size
    with opened(table) as file:
        file.seek(-size - 8, 2)  # its length and four letters end the file
        return hashlib.sha256(file.read(size)).hexdigest()


def _metadata(table: str) -> Any:
    import pyarrow.parquet

    try:
        with opened(table) as file:
            return pyarrow.parquet.ParquetFile(file).metadata
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise CapsellaError(f"{table}: cannot be read as Parquet ({error})") from error


def _named_by(path: str) -> Iterator[str]:
    if not is_url(path):
        yield from image_files([Path(path)])
        return
    if not exists(path):
        raise CapsellaError(f"{path}: there is no such file or folder")
    if is_image(path):
        yield path
        return
    empty = True
    for name in _listed(path) if path.lower().endswith(LIST) else walk(path):
        empty = False
        yield name
    if empty:
        raise CapsellaError(f"{path}: there is no image in it")


def _listed(url: str) -> Iterator[str]:
    with opened(url) as file:
        yield from listed(TextIOWrapper(file, encoding="utf-8", errors="surrogateescape"))
