"""Decoding in threads: the same pixels in the same order, and every broken file a reason."""

import os
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data.decoding import decode_files
from capsella.data.reading import MAX_BYTES, read_image
from capsella.image_options import Preprocessing

SIZE = (5, 7)


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(png_chunk(*chunk) for chunk in (*chunks, (b"IEND", b"")))


def bomb() -> bytes:
    """88,360,000 pixels in 90 kB."""
    packer = zlib.compressobj(9)
    return png(9_400, 9_400, (b"IDAT", packer.compress(b"\0" * 88_369_400) + packer.flush()))


def text_bomb() -> bytes:
    """A comment of 100 MB beside one pixel."""
    comment = zlib.compress(b"a" * 100_000_000, 9)
    return png(1, 1, (b"zTXt", b"Comment\0\0" + comment), (b"IDAT", zlib.compress(b"\0\0")))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files by name, each with a part of the reason that it must get; "" where it can be read."""
    folder = tmp_path_factory.mktemp("hostile")
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    for name in ("good.png", "cut.png", "cut.jpg", "wrong\nextension.jpg"):
        noise.save(folder / name, format="JPEG" if name == "cut.jpg" else "PNG")
    for name in ("cut.png", "cut.jpg"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-600])
    noise.save(folder / "moving.png", save_all=True, append_images=[noise.rotate(90)])
    noise.save(folder / "moving.gif", save_all=True, append_images=[noise.rotate(90)])
    Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40).save(folder / "deep.png")
    (folder / "bomb.png").write_bytes(bomb())
    (folder / "comment.png").write_bytes(text_bomb())
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("an image, it says")
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "gone.png").symlink_to("nowhere.png")
    with open(folder / "large.png", "wb") as file:
        file.truncate(MAX_BYTES + 1)  # takes no room on the disk
    reasons = {
        "good.png": "",
        "bomb.png": "9400×9400 pixels; at most 80,000,000 are read",
        "comment.png": "cannot be read as an image (",
        "cut.jpg": "cannot be read as an image (",
        "cut.png": "cannot be read as an image (",
        "deep.png": "it has 16 bits per channel",
        "empty.png": "the file is empty",
        "folder.png": "it is a folder",
        "gone.png": "no such file",
        "large.png": "400,000,001 bytes; at most 400,000,000 are read",
        "loop.png": "symbolic links",
        "moving.gif": "2 pages",
        "moving.png": "2 pages",
        "pipe.png": "it is a pipe or a device",
        "text.png": "no image of a format that is read",
        "wrong\nextension.jpg": "",
    }
    return {str(folder / name): reason for name, reason in reasons.items()}


@pytest.mark.parametrize("workers", [0, 2])
def test_hostile_files_each_get_their_reason(hostile: dict[str, str], workers: int) -> None:
    chunks = list(decode_files(hostile, Preprocessing(SIZE, 3), chunk=5, workers=workers))
    assert [len(chunk.files) for chunk in chunks] == [5, 5, 5, 1]
    results = {file: result for chunk in chunks for file, result in zip(chunk.files, chunk.results, strict=True)}
    found = {file: result if isinstance(result, str) else None for file, result in results.items()}
    assert list(found) == list(hostile)
    assert {file for file, reason in found.items() if reason is None} == {file for file in hostile if not hostile[file]}
    assert [(file, reason) for file, reason in found.items() if reason and hostile[file] not in reason] == []
    for chunk in chunks:
        good = [file for file in chunk.files if found[file] is None]
        assert chunk.pixels.shape == (len(good), 3, *SIZE)
        for file, pixels in zip(good, chunk.pixels, strict=True):
            assert torch.equal(torch.from_numpy(pixels), read_image(Path(file), SIZE, 3))


def test_files_are_taken_as_they_are_needed(hostile: dict[str, str]) -> None:
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield next(iter(hostile))

    running = decode_files(endless(), Preprocessing(SIZE, 3), chunk=1, workers=2)
    for _ in range(5):
        next(running)
    time.sleep(0.2)
    assert len(taken) <= 5 + 3 * 2 + 1
    running.close()
