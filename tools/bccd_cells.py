"""One whole cell of each photograph of `bccd`, as a laboratory of its own: `python -m tools.bccd_cells OUT.npz`.

The set has turned and shifted copies of 348 photographs, and in many the cell is cut off. Of the first eight copies of
each photograph, the one whose nucleus lies farthest from the border is kept, in nuclear radii. Photographs whose best
nucleus lies within 1.3 radii, where a cell is no longer whole, are left out. Labels are not looked at. Image files are
copied as they are.
"""

import argparse
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image
from rich.progress import track
from scipy import ndimage

from capsella.data.cell_crop import beyond_border, find_nucleus
from capsella.data.download import data_root

COPIES, ROOM = 8, 1.3


def room(image: Image.Image) -> float:
    """From the nucleus's centre to the border of what was photographed, in radii of the nucleus."""
    pixels = np.asarray(image.convert("RGB"))
    beyond = beyond_border(pixels)
    nucleus = find_nucleus(pixels, beyond)
    away = ndimage.distance_transform_edt(np.pad(~beyond, 1))
    return float(away[round(nucleus.row) + 1, round(nucleus.column) + 1] / nucleus.radius)


def main() -> None:
    """Write the file, and say how many cells it has."""
    parser = argparse.ArgumentParser(prog="python -m tools.bccd_cells", description=__doc__)
    parser.add_argument("out", metavar="OUT.npz", type=Path)
    out: Path = parser.parse_args().out
    arrays = np.load(data_root() / "wbc/bccd_augmented_128x96.npz")
    offsets, files = arrays["image_offset"], arrays["image"]
    contents = [files[start:end] for start, end in zip(offsets, offsets[1:], strict=False)]
    photographs = arrays["photo"]
    kept = []
    for photograph in track(np.unique(photographs), "looking for cells"):
        copies = np.flatnonzero(photographs == photograph)[:COPIES]
        rooms = [room(Image.open(BytesIO(contents[copy].tobytes()))) for copy in copies]
        if max(rooms) > ROOM:
            kept.append(copies[int(np.argmax(rooms))])
    lengths = [len(contents[one]) for one in kept]
    np.savez(
        out,
        image=np.concatenate([contents[one] for one in kept]),
        image_offset=np.cumsum([0, *lengths]),
        **{name: arrays[name][kept] for name in ("label", "name", "photo")},
        classes=arrays["classes"],
    )
    print(f"{len(kept)} cells of {len(np.unique(photographs))} photographs: {out}")


if __name__ == "__main__":
    main()
