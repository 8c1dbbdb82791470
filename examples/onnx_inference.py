"""Classify images with a network that `capsella export` wrote: NumPy, Pillow and ONNX Runtime, and no PyTorch.

python onnx_inference.py demo.onnx image.png …
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

MODES = {1: "L", 3: "RGB"}


def prepare(path: str, expected: dict) -> np.ndarray:
    """An 8-bit image file as the network takes it: [1 channels height width] in [0, 1]."""
    image = ImageOps.exif_transpose(Image.open(path)).convert(MODES[expected["channels"]])
    image = ImageOps.fit(image, (expected["width"], expected["height"]), method=Image.Resampling.BICUBIC)
    pixels = np.asarray(image, dtype=np.float32) / 255
    return pixels[None, None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)[None]


def main(model: str, paths: list[str]) -> None:
    """Print each file with its class and the activation of that class."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["capsella"])
    for path in paths:
        images = prepare(path, about["input"])  # several images of one size can go in at once
        activations = session.run(["activations"], {"images": images})[0][0]
        best = int(activations.argmax())
        print(f"{path}\t{about['classes'][best]}\t{activations[best]:.6f}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python onnx_inference.py MODEL.onnx IMAGE …")
    main(sys.argv[1], sys.argv[2:])
