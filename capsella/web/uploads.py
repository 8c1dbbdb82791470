"""Reads uploaded and drawn images: checks them before decoding, and describes every change in a sentence."""

from io import BytesIO

import torch
from jaxtyping import UInt8
from PIL import Image, ImageFile
from torch import Tensor

from capsella.data.image_file import FORMATS, depth_of
from capsella.data.reading import LEAST_LOSS, decode, readable, to_tensor
from capsella.errors import CapsellaError, errors_of
from capsella.image_options import Preprocessing
from capsella.models import ImageClassifier

MAX_BYTES = 20_000_000
MAX_MEGAPIXELS = 40  # take 120 MB of memory; decoding larger scans would take too long for a page
MAX_SKETCHED = 1_000_000  # pixels of the page's own canvas
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # of EXIF
_FOREIGN = "drawing: must come from the page's own canvas"


def read_upload(content: bytes, name: str, model: ImageClassifier) -> tuple[UInt8[Tensor, "c h w"], list[str]]:
    """Read an uploaded file, preprocessed for the model, in memory only.

    Returns:
        The image, 0..255, and sentences on how it was changed, e.g. resized, converted to grey or to 8 bits.

    Raises:
        CapsellaError: the file is larger than `MAX_BYTES` or `MAX_MEGAPIXELS`, or as for `read_image`; or the model
            takes neither grey nor colour images.
    """
    if model.channels not in (1, 3):
        raise CapsellaError(f"this network takes images of {model.channels} channels, which no image file holds")
    if len(content) > MAX_BYTES:
        raise CapsellaError(f"{name}: must be at most {MAX_BYTES / 1e6:.0f} MB, got {len(content) / 1e6:.1f} MB")
    with readable(BytesIO(content), name), Image.open(BytesIO(content), formats=FORMATS) as image:
        megapixels = image.width * image.height / 1e6
        if megapixels > MAX_MEGAPIXELS:
            raise CapsellaError(f"{megapixels:,.1f} megapixels; at most {MAX_MEGAPIXELS} are read here")
        said = _changes(name, image, model)
    pixels, loss = decode(BytesIO(content), name, model.preprocessing)
    with errors_of(name):
        loss.check(model.value_range)
    if loss.outside >= LEAST_LOSS:
        said.append(f"{loss.outside:.0%} of its values lie outside this range")
    return pixels, said


def _changes(name: str, image: ImageFile.ImageFile, model: ImageClassifier) -> list[str]:
    """Return sentences on how preprocessing changes an image."""
    depth, mode = depth_of(image), image.mode
    size = (image.height, image.width)
    if image.getexif().get(_ORIENTATION, 1) in _ON_ITS_SIDE:
        size = size[::-1]
    said = []
    wanted = model.image_size
    if model.cut is not None:
        stain = ", its stain was matched" if model.cut.matched else ""
        scale = "its own" if model.cut.radius is None else f"{model.cut.radius:.0f} pixels"
        said.append(
            f"the stained cell of {name} was cut out{stain} and resized to {wanted[1]}×{wanted[0]}; "
            f"a typical nucleus's radius is {scale} (--cell-radius)"
        )
    elif size != wanted:
        done = {"crop": "the middle was cut out and ", "pad": "padded and ", "squash": "squashed and "}[model.fit]
        first = "" if size[0] * wanted[1] == size[1] * wanted[0] else done
        said.append(f"{name} has {size[1]}×{size[0]} pixels: {first}resized to the network's {wanted[1]}×{wanted[0]}")
    if depth is not None and model.value_range is not None:
        low, high = model.value_range
        said.append(f"its values {low:,.6g} to {high:,.6g}, the network's range, became black to white")
    grey = mode in ("1", "L", "LA", "La") or mode.startswith(("I", "F"))
    if model.channels == 1 and not grey:
        said.append("its colours became grey, which is what the network takes")
    if image.has_transparency_data:
        said.append("what was transparent became black")
    return said


def read_sketch(content: bytes, model: ImageClassifier) -> UInt8[Tensor, "c h w"]:
    """Read a drawing (a PNG of the page's canvas, light on dark) at the model's size, 0..255.

    Raises:
        CapsellaError: a model for colour images, not a PNG of the canvas, or an empty canvas.
    """
    if model.channels != 1:
        raise CapsellaError("drawing: must be for a network of grey images; this one takes colour")
    try:
        with Image.open(BytesIO(content), formats=("PNG",)) as image:
            if image.width * image.height > MAX_SKETCHED:
                raise CapsellaError(_FOREIGN)
            tensor = to_tensor(image.convert("L"), Preprocessing(model.image_size, 1))
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise CapsellaError(_FOREIGN) from error
    if not torch.any(tensor > 0):
        raise CapsellaError("drawing: must show something; the canvas is empty")
    return tensor
