"""Images that a network was not made for, at its size and with its channels."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from capsella.data import DataOptions, ImageSet, NamedData, load_data, source_names
from capsella.data.decoding import decode_files
from capsella.data.images import join
from capsella.data.options import STAINED
from capsella.data.reading import resize_array
from capsella.errors import CapsellaError
from capsella.evaluation.prediction.listing import image_files
from capsella.evaluation.prediction.scale import scaled
from capsella.models import ImageClassifier

MOST = 1000
"""Images of each set: enough for an interval of a hundredth, and soon done."""
OF_SEVERAL_SIZES = ("segmentation-wbc", "bloodmnist", "pneumoniamnist")
"""Sources that are stored at several sizes, or whose images have several."""
NOISE, HALF = "noise", "half"


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """A set of images from elsewhere.

    name: as asked for. images: uint8 [n c h w]. classes: the name of each image's class, where the source has it.
    unread: files of a folder that cannot be read.
    """

    name: str
    images: UInt8[Tensor, "n c h w"]
    classes: tuple[str, ...] | None = None
    unread: int = 0


def elsewhere(name: str, model: ImageClassifier, own: ImageSet) -> Elsewhere:
    """At most 1,000 images to show `model`, drawn with a seed of their own.

    Args:
        name: "noise", each pixel and channel drawn evenly; "half", `own` with the right half painted in the colour of
            the border; the name of a source, of which all images count; or a folder of images.
        own: the test images of the model's own kind.

    Raises:
        CapsellaError: none of these; or the images cannot be read, or brought to the network's channels.
    """
    generator = torch.Generator().manual_seed(0)
    if name == NOISE:
        shape = (min(MOST, len(own)), model.channels, *model.image_size)
        return Elsewhere(name, torch.randint(256, shape, generator=generator, dtype=torch.uint8))
    if name == HALF:
        few = own.subset(torch.randperm(len(own), generator=generator)[:MOST])
        return Elsewhere(name, halved(few.images))
    if Path(name).is_dir():
        pixels, asked = _of_folder(Path(name), model, generator)
        return Elsewhere(name, pixels, unread=asked - len(pixels))
    if name not in source_names():
        raise CapsellaError(f"elsewhere: must be {NOISE}, {HALF}, a source or a folder of images, got {name!r}")
    return _of_source(name, model, generator)


def halved(images: UInt8[Tensor, "n c h w"]) -> UInt8[Tensor, "n c h w"]:
    """Images whose right half is painted in the middle colour, channel by channel, of their own border."""
    border = torch.cat([images[..., [0, -1], :].flatten(2), images[..., [0, -1]].flatten(2)], 2)
    images = images.clone()
    images[..., images.shape[3] // 2 :] = border.median(2).values[..., None, None]
    return images


def _of_source(name: str, model: ImageClassifier, generator: torch.Generator) -> Elsewhere:
    splits = load_data(_options(name, model))
    every = join([images for images in splits.named().values() if isinstance(images, ImageSet)])
    few = every.subset(torch.randperm(len(every), generator=generator)[:MOST].sort().values)
    if model.channels == 2 and few.channels != 2:
        raise CapsellaError(f"elsewhere: {name} has no stereo pairs, which {model.name} sees; take {NOISE} or {HALF}")
    pixels = resize_array(few.images.permute(0, 2, 3, 1).numpy(), model.image_size, model.channels)
    return Elsewhere(name, pixels, tuple(few.classes[k] for k in few.labels.tolist()))


def _options(name: str, model: ImageClassifier) -> DataOptions:
    """At the size that is stored, where all images have one: of 70,000 images only 1,000 need be made larger.

    Stained cells are cut out where the model's own were.
    """
    options, size = NamedData(name), max(model.image_size)
    if model.cut is not None and name in STAINED:
        return replace(options, size=size, cells="matched" if model.cut.matched else "cut")
    return replace(options, size=size) if name in OF_SEVERAL_SIZES else options


def _of_folder(folder: Path, model: ImageClassifier, generator: torch.Generator) -> tuple[Tensor, int]:
    """The images that can be read, and how many were asked for."""
    files = list(image_files([folder]))
    few = [files[k] for k in torch.randperm(len(files), generator=generator)[:MOST].sort().values.tolist()]
    cut = None if model.cut is None else scaled(model.cut, [folder])[0]
    chunks = decode_files(few, model.image_size, model.channels, model.value_range, cut)
    pixels = torch.cat([torch.from_numpy(chunk.pixels) for chunk in chunks])
    if not len(pixels):
        raise CapsellaError(f"elsewhere: none of the {len(few)} images in {folder} can be read")
    return pixels, len(few)
