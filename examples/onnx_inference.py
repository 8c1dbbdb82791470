"""Classify images with a network that `capsella export` wrote: NumPy, Pillow and ONNX Runtime, and no PyTorch.

python onnx_inference.py demo.onnx image.png …

It takes files of 8 bits, and grey ones of 16 where the network was trained on such. What the network needs of an image
stands in the file, under "preprocessing"; a network for cells that are cut out by their stain needs capsella itself.
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

MODES = {1: "L", 3: "RGB"}


def eight_bits(image: Image.Image, value_range: list[float] | None) -> Image.Image:
    """Values of more bits in the range that the network knows; what is transparent on black."""
    if image.mode.startswith(("I", "F")):
        if value_range is None:
            raise ValueError("more than 8 bits a channel: this network was trained on 8")
        low, high = value_range
        values = (np.asarray(image).astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
        return Image.fromarray(np.rint(values.clip(0, 255)).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    return image


def refuse(image: Image.Image) -> None:
    """Refuse what Pillow reads otherwise than it is stored, or in part; `capsella predict` reads or refuses it."""
    tags = image.tag_v2 if image.format == "TIFF" else {}
    bits, signs = (max(np.atleast_1d(tags.get(tag) or usual)) for tag, usual in ((258, 8), (339, 1)))
    deep, many = image.mode.startswith(("I", "F")), image.format in ("TIFF", "PNG", "GIF", "WEBP")
    reasons = {
        "several pages or pictures": many and getattr(image, "n_frames", 1) > 1,
        "16 bits a channel in colour": not deep and (bits > 8 or any(";16" in str(tile.args) for tile in image.tile)),
        "white stored as 0, with 16 bits": deep and tags.get(262) == 0,
        "32 bits without a sign": image.mode == "I" and bits == 32 and signs == 1,
        "8 bits with a sign": bits <= 8 and signs == 2,
        "values that are not finite": image.mode == "F" and not np.isfinite(np.asarray(image)).all(),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"this program cannot read it: {reason}")


def prepare(path: str, expected: dict) -> np.ndarray:
    """Read an image file as the network takes it: [1 channels height width] in [0, 1]."""
    stored = Image.open(path)
    refuse(stored)
    image = eight_bits(ImageOps.exif_transpose(stored), expected["value_range"])
    image = image.convert(MODES[expected["channels"]])
    image = ImageOps.fit(image, (expected["width"], expected["height"]), method=Image.Resampling.BICUBIC)
    pixels = np.asarray(image, dtype=np.float32) / 255
    return pixels[None, None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)[None]


def probabilities(activations: np.ndarray, calibration: dict) -> np.ndarray:
    """Return probabilities from activations: [classes], which sum to one."""
    a = np.maximum(activations.astype(np.float64), calibration["least"])
    logits = np.log(a)
    if "1 - " in calibration["logits"]:
        logits -= np.log1p(-np.minimum(activations.astype(np.float64), calibration["most"]))
    z = (logits + calibration["prior"]) / calibration["temperature"]
    p = np.exp(z - z.max())
    return p / p.sum()


def main(model: str, paths: list[str]) -> None:
    """Print each file with its class, the activation of that class, and its probability where there is one."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["capsella"])
    if about["input"]["cuts_cells"] or about["input"]["channels"] not in MODES:
        raise SystemExit(f"{model}: this program cannot prepare its images: {'; '.join(about['preprocessing'])}")
    for path in paths:
        try:
            images = prepare(path, about["input"])  # several images of one size can go in at once
        except (OSError, ValueError) as error:
            raise SystemExit(f"{path}: {error}") from error
        activations = session.run(["activations"], {"images": images})[0][0]
        best = int(activations.argmax())
        sure = [f"{probabilities(activations, about['calibration'])[best]:.6f}"] if "calibration" in about else []
        print(path, about["classes"][best], f"{activations[best]:.6f}", *sure, sep="\t")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python onnx_inference.py MODEL.onnx IMAGE …")
    main(sys.argv[1], sys.argv[2:])
