"""Which names were there before: of millions, without keeping them."""

import hashlib
import os

_BYTES = 16  # of a digest: two of a thousand million names are alike once in 10^20 times
_EMPTY = bytes(_BYTES)


class Names:
    """A set of names that keeps 16 bytes of each, their digest: 27 MB a million, and half as much again as it grows.

    >>> names = Names()
    >>> names.add("a.png"), names.add("a.png"), "b.png" in names, len(names)
    (True, False, False, 1)
    """

    def __init__(self) -> None:
        self._number, self._slots = 0, 1024
        self._table = bytearray(self._slots * _BYTES)

    def __len__(self) -> int:
        return self._number

    def __contains__(self, name: str) -> bool:
        return self._at(self._slot_of(_digest(name))) != _EMPTY

    def add(self, name: str) -> bool:
        """Whether the name is new."""
        digest = _digest(name)
        slot = self._slot_of(digest)
        if self._at(slot) == digest:
            return False
        if 3 * self._number > 2 * self._slots:
            self._grow()
            slot = self._slot_of(digest)
        self._put(slot, digest)
        self._number += 1
        return True

    def _at(self, slot: int) -> bytes:
        return bytes(self._table[slot * _BYTES : (slot + 1) * _BYTES])

    def _put(self, slot: int, digest: bytes) -> None:
        self._table[slot * _BYTES : (slot + 1) * _BYTES] = digest

    def _slot_of(self, digest: bytes) -> int:
        """Where it is, or the empty slot where it would be."""
        slot = int.from_bytes(digest[:8], "little") % self._slots
        while self._at(slot) not in (digest, _EMPTY):
            slot = (slot + 1) % self._slots
        return slot

    def _grow(self) -> None:
        old, slots = memoryview(self._table), self._slots
        self._slots *= 2
        self._table = bytearray(self._slots * _BYTES)
        for slot in range(slots):
            if (digest := bytes(old[slot * _BYTES : (slot + 1) * _BYTES])) != _EMPTY:
                self._put(self._slot_of(digest), digest)


def _digest(name: str) -> bytes:
    return hashlib.blake2b(os.fsencode(name), digest_size=_BYTES).digest()
