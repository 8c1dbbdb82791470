"""Summarize a data set: counts per class, warnings about few images, and a contact sheet."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image, ImageDraw, ImageFont, ImageOps

from capsella.data.batching import evenly
from capsella.data.folder import spread
from capsella.data.image_file import cropped_share, fit_image
from capsella.data.images import ImageSet
from capsella.data.reading import LEAST_LOSS, open_file, readable
from capsella.data.splits import LabelledImages, Splits
from capsella.errors import CapsellaError, check_minimum, pluralize, warn_once
from capsella.image_options import Fit

LEAST_TRAIN, LEAST_TEST = 10, 5  # images of a class, below which `too_few` names it
LEAST_GROUPS = 5  # groups of test images, e.g. patients, below which `few_groups` warns
LARGEST_GROUP = 1 / 3  # fraction of the test images above which `few_groups` warns
UNEVEN = 1.5  # ratio of training images between the largest and the smallest class, from which classes are uneven
_MAX_NAMED = 8
_MIN_SIDE, _MAX_SIDE = 48, 128  # smaller images are enlarged by a whole factor, larger ones become thumbnails
_MARGIN = 4
_FIRST_PAIRS = 1000  # a contact sheet of pairs shows some of these
_OBLONG = 8  # oblong images on their sheet


class ClassCounts(NamedTuple):
    """Number of images of a class in each split."""

    name: str
    train: int
    validation: int
    test: int


def describe(splits: Splits) -> list[ClassCounts]:
    """Count the images per class and split; for pairs, count the images that they are made of."""
    counts = [images.counts() for images in splits.named().values()]
    return [ClassCounts(name, *(count[name] for count in counts)) for name in splits.classes]


def few_groups(
    groups: Int[np.ndarray, " images"], labels: Int[np.ndarray, " images"], classes: Sequence[str]
) -> list[str]:
    """Return warnings if the test images, or those of a class, come from few groups, or mostly from one."""
    _, sizes = np.unique(groups, return_counts=True)
    if len(sizes) < LEAST_GROUPS:
        number = pluralize(len(sizes), "group")
        return [f"the test images are of {number}, too few to generalise to others, whatever the interval"]
    sentences = []
    if (share := sizes.max() / len(groups)) > LARGEST_GROUP:
        sentences.append(
            f"one group has {100 * share:.0f} % of the test images, so the result is mostly about that group"
        )
    counts = {name: len(np.unique(groups[labels == label])) for label, name in enumerate(classes)}
    if few := [f"{name} ({count})" for name, count in counts.items() if 0 < count < LEAST_GROUPS]:
        why = f"test images of fewer than {LEAST_GROUPS} groups, too few to generalise to others"
        sentences.append(f"{why}: {_named(few)}")
    return sentences


def _named(classes: Sequence[str]) -> str:
    rest = f" and {len(classes) - _MAX_NAMED} more classes" if len(classes) > _MAX_NAMED else ""
    return f"{', '.join(classes[:_MAX_NAMED])}{rest}"


def warn_of_few(splits: Splits) -> None:
    """Warn about classes with few images, about few groups, and about uneven classes, once per process."""
    for sentence in too_few(splits):
        warn_once(f"{splits.name}: {sentence}", f"{splits.name}: {sentence}")


def too_few(splits: Splits) -> list[str]:
    """Return what `warn_of_few` warns of."""
    counts = describe(splits)
    sentences = []
    if isinstance(splits.test, ImageSet) and "group" in splits.test.metadata:
        few = few_groups(splits.test.metadata["group"].numpy(), splits.test.labels.numpy(), splits.classes)
        sentences = [f"{sentence} (--folds tests every group)" for sentence in few]
    for split, name, least, why in (
        ("train", "training", LEAST_TRAIN, "too few to learn a class from"),
        ("test", "test", LEAST_TEST, "too few to measure how well a class is recognised"),
    ):
        few = [f"{row.name} ({getattr(row, split)})" for row in counts if getattr(row, split) < least]
        if few:
            sentences.append(f"fewer than {least} {name} images, {why}: {_named(few)}")
    sizes = [row.train for row in counts]
    if max(sizes) >= UNEVEN * min(sizes):
        large, small = (function(counts, key=lambda row: row.train) for function in (max, min))
        sentences.append(
            f"uneven classes: {large.name} has {large.train / small.train:.1f} times the training images of "
            f"{small.name}; look at the balanced accuracy (recipes for your own images balance such classes)"
        )
    return sentences


def contact_sheet(images: LabelledImages, per_class: int = 10) -> Image.Image:
    """Draw one row per class, with its name and up to `per_class` images spread evenly over the class.

    A pair may be in the rows of both its classes. Large images become thumbnails.

    Raises:
        ValueError: `per_class` is below 1.
    """
    check_minimum(1, per_class=per_class)
    if not isinstance(images, ImageSet):
        images = images.subset(torch.arange(min(len(images), _FIRST_PAIRS)))
    labels = images.labels.reshape(len(images), -1)  # [n 1] or [n 2]
    scale = float(-(-_MIN_SIDE // min(images.image_size)))
    if max(images.image_size) > _MAX_SIDE:
        scale = _MAX_SIDE / max(images.image_size)
    height, width = (max(1, round(side * scale)) for side in images.image_size)
    resample = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    rows = {}
    for label, name in enumerate(images.classes):
        members = torch.nonzero((labels == label).any(1)).flatten()
        chosen = members[evenly(len(members), per_class)].tolist()
        rows[name] = [_picture(images, index).resize((width, height), resample) for index in chosen]
    return _sheet(rows)


def oblong_sheet(files: Sequence[Path], size: int | None = None) -> Image.Image | None:
    """Draw some of the images that are not square, and what `crop`, `pad` and `squash` to `size` leave of each.

    Returns:
        One row per image, or None if all inspected images are square.
    """
    side = max(size or _MAX_SIDE, _MIN_SIDE)
    rows: dict[str, list[Image.Image]] = {}
    for file in (files[row] for row in spread(len(files), 10 * _OBLONG)):
        with suppress(CapsellaError), readable(file, str(file)):
            image = open_file(file).image
            if len(rows) < _OBLONG and image is not None and cropped_share(image.size, (1, 1)) >= LEAST_LOSS:
                fitted = [fit_image(image, (side, side), fit) for fit in get_args(Fit)]
                rows[file.name] = [ImageOps.contain(image, (side, side)), *fitted]
    return _sheet(rows, ("image", *get_args(Fit))) if rows else None


def _sheet(rows: Mapping[str, Sequence[Image.Image]], heading: Sequence[str] = ()) -> Image.Image:
    """Draw a row of pictures for each name, and a heading for each column."""
    font, pictures = ImageFont.load_default(14), [picture for row in rows.values() for picture in row]
    left, top = int(max(map(font.getlength, rows))) + 2 * _MARGIN, 20 if heading else _MARGIN
    width, height = (max(sides) + _MARGIN for sides in zip(*(picture.size for picture in pictures), strict=True))
    columns = max(map(len, rows.values()))
    sheet = Image.new("RGB", (left + columns * width, top + len(rows) * height), "white")
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(heading):
        draw.text((left + column * width, 2), title, fill="black", font=font)
    for number, (name, row) in enumerate(rows.items()):
        draw.text((_MARGIN, top + number * height + height // 2), name, fill="black", font=font, anchor="lm")
        for column, picture in enumerate(row):
            sheet.paste(picture, (left + column * width, top + number * height))
    return sheet


def _picture(images: LabelledImages, index: int) -> Image.Image:
    pixels = images.take(torch.tensor([index])).images[0]
    if len(pixels) < 3:  # of a stereo pair, the left image
        return Image.fromarray(pixels[0].numpy())
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())
