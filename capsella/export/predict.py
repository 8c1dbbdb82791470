"""Classify images like `capsella predict`, without capsella: python predict.py IMAGES OR FOLDERS > table.csv."""

import io
import json
import sys
from csv import DictWriter
from glob import glob
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

from capsella.data.framing import fit_image, in_srgb, to_grey_or_rgb

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP")
BITS, WHITE, PLANES, SIGN = 258, 262, 284, 339  # tags of TIFF files
OTHER_ORDER = {"RGB;16B": "RGB;16L", "RGB;16L": "RGB;16B", "RGB;16N": "RGB;16B"}  # of bytes; N is the machine's, here L


def read_image(path: str | Path, about: dict) -> np.ndarray:
    """Read an image file into the network's format, [channels height width], 0 to 255; `about` is model.json."""
    content = Path(path).read_bytes()
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        refuse(image.width * image.height > 80e6, "more than 80 million pixels")
        refuse(image.format in ("TIFF", "PNG", "GIF", "WEBP") and getattr(image, "n_frames", 1) > 1, "several pictures")
        if is_deep(image):
            image = read_deep(content, about["value_range"])
        else:
            level = image.info.get("transparency")  # Pillow scales grey levels of 2 and 4 bits, but not this one
            if image.format == "PNG" and isinstance(level, int) and image.tile:
                image.info["transparency"] = level * 255 // {"L;2": 3, "L;4": 15}.get(raw(image.tile[0])[0], 255)
            image.load()
            image = to_grey_or_rgb(in_srgb(ImageOps.exif_transpose(image)))
        image = image.convert({1: "L", 3: "RGB"}[about["input"]["channels"]])
    size = about["input"]["width"], about["input"]["height"]
    if image.size != size:
        image = fit_image(image, size[::-1], about["fit"])
    return np.asarray(image).reshape(size[1], size[0], -1).transpose(2, 0, 1)


def refuse(holds: object, reason: str) -> None:
    """Raise `ValueError` with the reason if a condition holds."""
    if holds:
        raise ValueError(f"cannot be read: {reason}")


def tag(image: Image.Image, number: int) -> float | None:
    """Return a TIFF tag's value; the largest of several."""
    value = getattr(image, "tag_v2", {}).get(number)
    return max(value, default=None) if isinstance(value, bytes | tuple) else value


def raw(tile: tuple) -> tuple:
    """Return the arguments of Pillow's decoder: how a file stores pixels, e.g. RGB;16B, and more."""
    return tile.args if isinstance(tile.args, tuple) and tile.args else (tile.args,)


def is_deep(image: Image.Image) -> bool:
    """Return True for more than 8 bits per channel."""
    bits = (tag(image, BITS) or 8) if image.format == "TIFF" else 8
    refuse(image.format == "TIFF" and tag(image, SIGN) == 2 and bits <= 8, "8 bits with a sign")
    deep = image.format in ("PNG", "TIFF") and any(";16" in str(raw(tile)[0]) for tile in image.tile)
    return deep or bits > 8 or image.mode.startswith(("I", "F"))


def read_deep(content: bytes, value_range: list | None) -> Image.Image:
    """Read a file of more than 8 bits per channel, and scale its values from `value_range` to 0..255."""
    refuse(value_range is None, "more than 8 bits per channel; this network was trained on 8")
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        colour = not image.mode.startswith(("I", "F"))
        others = {raw(tile)[0] for tile in image.tile} - OTHER_ORDER.keys()
        refuse(colour and (others or tag(image, PLANES) == 2), "neither grey nor interleaved RGB, with 16 bits")
        refuse(image.has_transparency_data or tag(image, WHITE) == 0, "16 bits and transparency, or white as 0")
        values = np.asarray(ImageOps.exif_transpose(image))
        if image.mode == "I" and tag(image, BITS) == 32 and tag(image, SIGN) in (None, 1):
            values = np.ascontiguousarray(values).view(np.uint32)  # Pillow reads all as signed
    if colour:  # Pillow keeps the upper byte of each channel; in the other order of bytes, the lower one
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            image.tile = [tile._replace(args=(OTHER_ORDER[raw(tile)[0]], *raw(tile)[1:])) for tile in image.tile]
            values = 256 * values.astype(np.int32) + np.asarray(ImageOps.exif_transpose(image))
    refuse(not np.isfinite(values).all(), "values that are not finite")
    low, high = value_range
    refuse(((values < low) | (values > high)).mean() > 0.5, f"most values lie outside {low:g} to {high:g}")
    scaled = (values.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
    return Image.fromarray(np.rint(scaled.clip(0, 255)).astype(np.uint8))


class Network:
    """The network of an exported folder; 0 `threads` use all cores."""

    def __init__(self, folder: Path = Path(__file__).parent, threads: int = 0) -> None:
        self.about, options = json.loads((folder / "model.json").read_bytes()), onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(folder / "model.onnx", options, ["CPUExecutionProvider"])

    def predict(self, path: str | Path) -> dict:
        """Return a row of the table. After training with balanced classes, another class may be more probable."""
        images, names = read_image(path, self.about)[None].astype(np.float32) / 255, self.session.get_outputs()
        found = {names[k].name: array[0] for k, array in enumerate(self.session.run(None, {"images": images}))}
        classes, best = self.about["classes"], int(found["activations"].argmax())
        row = {name: f"{found['activations'][k]:.6f}" for k, name in enumerate(classes)}
        row |= {"file": str(path), "class": classes[best]}
        row |= {"probability": f"{found['probabilities'][best]:.6f}"} if "probabilities" in found else {}
        if "ood_score" in found:
            score, limits = float(found["ood_score"]), self.about["thresholds"]
            row["in_distribution"] = str(score <= limits["ood_score"]).lower()
            if score > limits["ood_score"] and (kind := limits["another_kind"]) is not None:
                row["ood_reason"] = "another kind of image" if score > kind else "another laboratory"
        return row


def main(paths: list) -> None:
    """Print a table with a row per file."""
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape", newline="")
    net, files = Network(), []
    for path in map(Path, paths):  # glob skips hidden files, and follows links
        found = [path / p for p in glob("**/*", root_dir=path, recursive=True) if p.lower().endswith(ENDINGS)]
        files += sorted(found) if path.is_dir() else [path]
    ood = "in_distribution", "ood_reason"
    table = DictWriter(sys.stdout, ["file", "class", *net.about["classes"], "probability", *ood, "error"])
    table.writeheader()
    for file in files:
        try:
            table.writerow(net.predict(file))
        except Exception as error:  # decoders raise errors of every kind on damaged bytes
            table.writerow({"file": str(file), "error": str(error)})


if __name__ == "__main__":
    main(sys.argv[1:]) if len(sys.argv) > 1 else print(__doc__)
