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
        self._content = bytearray()

    def add(self, name: str, kind: str, values: Any) -> None:
        """Add `values` in one of the number formats of `KINDS`.

        "f2" is stored as all low bytes, then all high bytes, which compresses better.

        Raises:
            ArgumentError: a number that the kind cannot represent.
        """
        array = np.ascontiguousarray(values)
        with np.errstate(over="ignore"):
            stored = array.astype(KINDS[kind])
        if np.isfinite(array).all() and not np.isfinite(stored).all():
            raise ArgumentError(name, f"be in the range of {kind}", np.abs(array).max())
        content = stored.tobytes()
        if kind == "f2":
            content = np.frombuffer(content, np.uint8).reshape(-1, 2).T.tobytes()
        self._table[name] = [kind, list(stored.shape), len(self._content)]
        self._content += content + b"\0" * (-len(content) % ALIGNMENT)

    @property
    def table(self) -> Mapping[str, list[Any]]:
        """The kind, shape and byte offset of each array, by name."""
        return self._table

    def content(self) -> bytes:
        """Return the bytes of all arrays."""
        return bytes(self._content)

    def packed(self) -> str:
        """Return the bytes of all arrays, deflated, in base64."""
        return base64.b64encode(zlib.compress(self._content, 6)).decode()
