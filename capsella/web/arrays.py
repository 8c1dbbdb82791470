"""The arrays of a page: one deflated block of bytes, and a table of offsets. `page/content.js` reads them."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from capsella.errors import ArgumentError

# Number formats of the arrays, little-endian.
KINDS = {"f4": np.float32, "f2": np.float16, "u1": np.uint8, "i1": np.int8, "u2": np.uint16}
ALIGNMENT = 4  # bytes: typed arrays in a browser begin at multiples of their element size


class Arrays:
    """A collection of named arrays, in the order of addition."""

    def __init__(self) -> None:
        self._table: dict[str, list[Any]] = {}
        self._parts: list[bytes] = []
        self._bytes = 0

    def add(self, name: str, kind: str, values: Any) -> None:
        """Add `values` in one of the number formats of `KINDS`.

        "f2" is stored as all low bytes, then all high bytes, which compresses better.

        Raises:
            ArgumentError: an unknown kind, a duplicate name, or a number that the kind cannot represent.
        """
        if kind not in KINDS:
            raise ArgumentError("kind", f"be one of {', '.join(KINDS)}", kind)
        if name in self._table:
            raise ArgumentError("name", "be new", name)
        array = np.ascontiguousarray(values)
        with np.errstate(over="ignore"):
            stored = array.astype(KINDS[kind])
        if np.isfinite(array).all() and not np.isfinite(stored).all():
            raise ArgumentError(
                f"{name}", f"be in the range of {kind}", np.abs(array).max(), shown=f"{np.abs(array).max():.3g}"
            )
        content = stored.tobytes()
        if kind == "f2":
            content = np.frombuffer(content, np.uint8).reshape(-1, 2).T.tobytes()
        self._table[name] = [kind, list(stored.shape), self._bytes]
        self._parts.append(content + b"\0" * (-len(content) % ALIGNMENT))
        self._bytes += len(self._parts[-1])

    @property
    def table(self) -> Mapping[str, list[Any]]:
        """The kind, shape and byte offset of each array, by name."""
        return self._table

    def content(self) -> bytes:
        """Return the bytes of all arrays."""
        return b"".join(self._parts)

    def packed(self) -> str:
        """Return the bytes of all arrays, deflated, in base64."""
        return base64.b64encode(zlib.compress(self.content(), 6)).decode()

    def sizes(self) -> dict[str, int]:
        """Return bytes on the page, summed by the last part of the arrays' names; "0/weight2" counts as "weight"."""
        sizes: dict[str, int] = {}
        for name, part in zip(self._table, self._parts, strict=True):
            kind = name.rpartition("/")[2].rstrip("0123456789")
            sizes[kind] = sizes.get(kind, 0) + len(zlib.compress(part, 1)) * 4 // 3
        return sizes
