"""Files of more than 8 bits a channel that Pillow does not write."""

import struct
import zlib

import numpy as np


def png16(pixels: np.ndarray) -> bytes:
    """A PNG of 16 bits a channel from [h w 3] (RGB) or [h w 4] (RGBA)."""
    height, width, channels = pixels.shape

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def tiff(pixels: np.ndarray, byte_order: str = "<") -> bytes:
    """An uncompressed TIFF from [h w] or [h w 3] unsigned integers."""
    height, width = pixels.shape[:2]
    channels = 1 if pixels.ndim == 2 else 3
    stored = pixels.astype(pixels.dtype.newbyteorder(byte_order))
    content = stored.tobytes()
    entries: dict[int, tuple[int, ...]] = {
        256: (width,),
        257: (height,),
        258: (8 * stored.itemsize,) * channels,
        259: (1,),
        262: (2 if channels == 3 else 1,),
        273: (0,),
        277: (channels,),
        278: (height,),
        279: (len(content),),
        339: (1,) * channels,
    }
    first = 8 + 2 + 12 * len(entries) + 4
    longer = b"".join(struct.pack(f"{byte_order}{len(v)}H", *v) for _, v in sorted(entries.items()) if len(v) > 2)
    entries[273] = (first + len(longer),)
    directory, place = b"", first
    for number, values in sorted(entries.items()):
        packed = struct.pack(f"{byte_order}{len(values)}H", *values).ljust(4, b"\0")
        if len(values) > 2:
            packed, place = struct.pack(f"{byte_order}I", place), place + 2 * len(values)
        directory += struct.pack(f"{byte_order}HHI", number, 3, len(values)) + packed
    head = (b"II*\0" if byte_order == "<" else b"MM\0*") + struct.pack(f"{byte_order}IH", 8, len(entries))
    return head + directory + b"\0\0\0\0" + longer + content
