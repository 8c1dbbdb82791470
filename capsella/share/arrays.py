"""Arrays for a page: one block of bytes, deflated, and a table of where each lies. `page/content.js` reads it."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from capsella.errors import ArgumentError

KINDS = {"f4": np.float32, "f2": np.float16, "u1": np.uint8, "i1": np.int8, "u2": np.uint16}
"""Numbers as a page holds them, little-endian."""
ALIGNMENT = 4  # bytes: typed arrays in a browser begin at multiples of their element


class Arrays:
    """Arrays by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._table: dict[str, list[Any]] = {}
        self._parts: list[bytes] = []
        self._bytes = 0

    def add(self, name: str, kind: str, values: Any) -> None:
        """Keep `values` as numbers of a kind.

        "f2" is kept as all low bytes, then all high bytes: these are alike, and deflate to less.

        Raises:
            ValueError: an unknown kind, a name that is taken, or a number that the kind cannot hold.
        """
        if kind not in KINDS:
            raise ArgumentError("kind", f"be one of {', '.join(KINDS)}", kind)
        if name in self._table:
            raise ValueError(f"name: must be a new one, got {name!r} again")
        given = np.ascontiguousarray(values)
        with np.errstate(over="ignore"):
            kept = given.astype(KINDS[kind])
        if np.isfinite(given).all() and not np.isfinite(kept).all():
            raise ArgumentError(
                f"{name}", f"be within what {kind} can hold", np.abs(given).max(), shown=f"{np.abs(given).max():.3g}"
            )
        content = kept.tobytes()
        if kind == "f2":
            content = np.frombuffer(content, np.uint8).reshape(-1, 2).T.tobytes()
        self._table[name] = [kind, list(kept.shape), self._bytes]
        self._parts.append(content + b"\0" * (-len(content) % ALIGNMENT))
        self._bytes += len(self._parts[-1])

    @property
    def table(self) -> Mapping[str, list[Any]]:
        """Kind, shape and first byte of each array."""
        return self._table

    def content(self) -> bytes:
        """All bytes."""
        return b"".join(self._parts)

    def packed(self) -> str:
        """All bytes, deflated, in base64."""
        return base64.b64encode(zlib.compress(self.content(), 6)).decode()

    def sizes(self) -> dict[str, int]:
        """Bytes on the page by the last part of the names, "0/weight2" being of "weight"; each deflated by itself."""
        sizes: dict[str, int] = {}
        for name, part in zip(self._table, self._parts, strict=True):
            what = name.rpartition("/")[2].rstrip("0123456789")
            sizes[what] = sizes.get(what, 0) + len(zlib.compress(part, 1)) * 4 // 3
        return sizes
