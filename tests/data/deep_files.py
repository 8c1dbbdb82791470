"""Files of more than 8 bits a channel that Pillow does not write."""

import struct
import zlib

import numpy as np


def png16(pixels: np.ndarray, transparent: tuple[int, int, int] | None = None) -> bytes:
    """A PNG of 16 bits a channel from [h w 3] (RGB) or [h w 4] (RGBA); transparent: a colour that is so."""
    height, width, channels = pixels.shape

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    colour = b"" if transparent is None else chunk(b"tRNS", struct.pack(">HHH", *transparent))
    chunks = chunk(b"IHDR", header) + colour + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def planar(pixels: np.ndarray) -> bytes:
    """An uncompressed TIFF from [h w 3] whose red, green and blue lie apart."""
    height, width, _ = pixels.shape
    plane = pixels[..., 0].nbytes
    first = 8 + 2 + 12 * 10 + 4
    content = np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype("<u2").tobytes()
    longer = {258: (16,) * 3, 273: tuple(first + 18 + plane * n for n in range(3)), 279: (plane,) * 3}
    short = {256: width, 257: height, 259: 1, 262: 2, 277: 3, 278: height, 284: 2}
    directory, places = b"", b""
    for number in sorted({**longer, **short}):
        if number in short:
            directory += struct.pack("<HHIHH", number, 3, 1, short[number], 0)
        else:
            directory += struct.pack("<HHII", number, 3, 3, first + len(places))
            places += struct.pack("<3H", *longer[number])
    return b"II*\0" + struct.pack("<IH", 8, 10) + directory + b"\0\0\0\0" + places + content


def tiff(pixels: np.ndarray, byte_order: str = "<", deflate: bool = False, **tags: int) -> bytes:
    """A TIFF from [h w] or [h w 3] unsigned integers; `tags` as t262=0: further ones, by number."""
    height, width = pixels.shape[:2]
    channels = 1 if pixels.ndim == 2 else 3
    stored = pixels.astype(pixels.dtype.newbyteorder(byte_order))
    content = zlib.compress(stored.tobytes()) if deflate else stored.tobytes()
    entries: dict[int, tuple[int, ...]] = {
        256: (width,),
        257: (height,),
        258: (8 * stored.itemsize,) * channels,
        259: (8 if deflate else 1,),
        262: (2 if channels == 3 else 1,),
        273: (0,),
        277: (channels,),
        278: (height,),
        279: (len(content),),
        339: (1,) * channels,
        **{int(name[1:]): (value,) for name, value in tags.items()},
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
