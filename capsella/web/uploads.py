"""Reads uploaded and drawn images: checks them before decoding, and describes every change in a sentence."""

import re
import warnings
from io import BytesIO

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from capsella.data.reading import FORMATS, LEAST_LOSS, decode, depth_of, to_tensor
from capsella.errors import CapsellaError, errors_of
from capsella.image_options import Preprocessing
from capsella.models import ImageClassifier

MAX_BYTES = 20_000_000
MAX_PIXELS = 40_000_000  # takes 120 MB of memory; decoding larger scans would take too long for a page
MAX_SKETCHED = 1_000_000  # pixels of the page's own canvas
_OTHERS = ("ICO", "TGA", "PPM")  # formats that are recognised only to name them in an error
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # of EXIF
_FOREIGN = "drawing: must come from the page's own canvas"


def read_upload(content: bytes, name: str, model: ImageClassifier) -> tuple[UInt8[Tensor, "c h w"], list[str]]:
    """Read an uploaded file, preprocessed for the model, in memory only.

    Returns:
        The image, 0..255, and sentences on how it was changed, e.g. resized, converted to grey or to 8 bits.

    Raises:
        CapsellaError: the file is larger than `MAX_BYTES` or `MAX_PIXELS`, damaged, of another format, animated or of
            several pages; or the model takes neither grey nor colour images.
    """
    if model.channels not in (1, 3):
        raise CapsellaError(f"this network takes images of {model.channels} channels, which no image file holds")
    if len(content) > MAX_BYTES:
        raise CapsellaError(f"{name}: must be at most {MAX_BYTES / 1e6:.0f} MB, got {len(content) / 1e6:.1f} MB")
    said = _check_header(content, name, model)
    pixels, loss = decode(BytesIO(content), name, model.preprocessing)
    with errors_of(name):
        loss.check(model.value_range)
    if loss.outside >= LEAST_LOSS:
        said.append(f"{loss.outside:.0%} of its values lie outside this range")
    return pixels, said


def _check_header(content: bytes, name: str, model: ImageClassifier) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is stricter
            image = Image.open(BytesIO(content), formats=(*FORMATS, *_OTHERS))
        with image:
            kind, (width, height), mode = image.format, image.size, image.mode
            _check_pixels(name, width * height, f"{width}×{height} = ")
            depth, is_transparent = depth_of(image), image.has_transparency_data
            # A phone's JPEG may contain further, smaller pictures; only the first counts, as in training.
            frames = 1 if kind == "MPO" else getattr(image, "n_frames", 1)
            has_exif = "exif" in image.info or kind == "TIFF"  # otherwise a PNG would be decoded to look for it
            if has_exif and image.getexif().get(_ORIENTATION, 1) in _ON_ITS_SIDE:
                width, height = height, width
    except Image.DecompressionBombError as error:  # Pillow does not tell height and width
        pixels = re.search(r"\d+", str(error))
        _check_pixels(name, int(pixels[0]) if pixels else 2 * MAX_PIXELS, "")
        raise
    except CapsellaError:
        raise
    except Exception as error:  # decoders raise errors of every kind on damaged bytes
        raise CapsellaError(
            f"{name}: is damaged, or no image; PNG, JPEG, BMP, TIFF, GIF and WebP can be read"
        ) from error
    if frames > 1:
        raise CapsellaError(f"{name}: must be a single picture, got {frames} (animated, or several pages)")
    if kind not in FORMATS and kind != "MPO":
        raise CapsellaError(f"{name}: must be PNG, JPEG, BMP, TIFF, GIF or WebP, got {kind}")
    if depth is not None and model.value_range is None:
        raise CapsellaError(
            f"{name}: has {depth} a channel, and this network was trained on images of 8; save it with 8 bits"
        )
    return _changes(name, (height, width), mode, depth, is_transparent, model)


def _check_pixels(name: str, pixels: int, sides: str) -> None:
    if pixels > MAX_PIXELS:
        raise CapsellaError(
            f"{name}: is too large, must have at most {MAX_PIXELS // 10**6} megapixels, got {sides}{pixels / 1e6:,.1f}"
        )


def _changes(
    name: str, size: tuple[int, int], mode: str, depth: str | None, is_transparent: bool, model: ImageClassifier
) -> list[str]:
    """Return sentences on how preprocessing changes an image of this size (height, width), mode and depth."""
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
    if is_transparent:
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
