"""What a program that runs an exported network must know: written into the file as JSON, under the key `capsella`."""

from typing import Any

from capsella.models import ImageClassifier
from capsella.version import __version__

KEY = "capsella"


def describe_model(model: ImageClassifier, **more: Any) -> dict[str, Any]:
    """Sizes, classes and what has to be done to an image first, JSON-ready, with `more` entries behind.

    Cropping and standardising belong to the network and are in the file. What remains outside: reading, an aspect ratio
    and a size, grey or colour, the scale.
    """
    height, width = model.image_size
    return {
        "model": model.name,
        "classes": list(model.classes),
        "input": {
            "name": "images",
            "layout": "batch, channels, height, width",
            "channels": model.channels,
            "colours": {1: "grey (Rec. 601 luma)", 2: "grey stereo pair, left and right", 3: "RGB"}.get(model.channels),
            "height": height,
            "width": width,
            "range": [0.0, 1.0],
        },
        "preprocessing": [
            "turn upright as EXIF says, convert to the colours above",
            "crop the centre to the aspect ratio above, resize with an antialiased bicubic filter",
            "divide 8-bit values by 255",
        ],
        "output": {"name": "activations", "layout": "batch, classes", "range": [0.0, 1.0], "prediction": "the largest"},
        "capsella": __version__,
        **more,
    }
