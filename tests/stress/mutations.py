"""Mutations of files: bytes are cut, flipped, overwritten or spliced; values of JSON and cells of CSV are replaced."""

import json
import random
import struct
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))] if content else content


def flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 4, 20])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flip_near_the_start(content: bytes, rng: random.Random) -> bytes:
    head = content[:200]
    return flip(head, rng) + content[200:]


def overwrite(content: bytes, rng: random.Random) -> bytes:
    """Write an impossible size or offset."""
    value = rng.choice([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x00FFFFFF])
    place = rng.randrange(max(1, min(len(content), rng.choice([64, 10**9]))))
    return content[:place] + struct.pack(rng.choice("<>") + "I", value) + content[place + 4 :]


def drop(content: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(content)) for _ in range(2))
    return content[:a] + content[b:]


def double(content: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(content)) for _ in range(2))
    return content[:b] + content[a:]


def blank(content: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(content)) for _ in range(2))
    return content[:a] + bytes([rng.choice([0, 255, 32])]) * (b - a) + content[b:]


def noise(content: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 10, 1000, 10_000]))


BYTES: list[Mutation] = [cut, flip, flip, flip_near_the_start, flip_near_the_start, overwrite, overwrite, drop, double]
BYTES += [blank, noise]

ODD: list[Any] = [
    None, True, -1, 0, 1e300, 10**30, "", "x", "\x00", "../../x", [], {}, [[]], {"a": 1}, [None], float("nan"),
    float("inf"), "1" * 100_000, -0.5, 3.7, ["a", 1], "__class__", [1] * 10_000,
]  # fmt: skip


def odd_json(content: bytes, rng: random.Random) -> bytes:
    """Replace a value, remove or add a key, or return endless brackets."""
    if rng.random() < 0.05:
        return b"[" * 200_000
    document = json.loads(content)
    places = list(_places(document))
    holder, key = rng.choice(places)
    what = rng.random()
    if what < 0.7:
        holder[key] = rng.choice(ODD)
    elif what < 0.85:
        del holder[key]
    elif isinstance(holder, dict):
        holder["unknown key"] = holder[key]
    else:
        holder.append(rng.choice(ODD))
    return json.dumps(document).encode()


def _places(value: Any) -> Any:
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def odd_table(content: bytes, rng: random.Random) -> bytes:
    """Replace a cell of a CSV, or remove, repeat or lengthen a line."""
    lines = content.decode().splitlines()
    k = rng.randrange(len(lines))
    cells = lines[k].split(",")
    what = rng.random()
    if what < 0.5:
        cells[rng.randrange(len(cells))] = rng.choice(
            ["", "x", "nan", "-1", "1e999", '"', "é" * 200_000, "\x00", "../x"]
        )
        lines[k] = ",".join(cells)
    elif what < 0.7:
        del lines[k]
    elif what < 0.85:
        lines.insert(k, lines[k])
    else:
        lines[k] = ",".join([*cells, *cells])
    return "\n".join(lines).encode("utf-8", "surrogateescape")
