"""Summarize a data set: counts per class, warnings about few images, and a contact sheet."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image, ImageDraw, ImageFont, ImageOps

from capsella.data.batching import evenly
from capsella.data.framing import cropped_share, fit_image
from capsella.data.images import ImageSet
from capsella.data.listing import folder_files, spread
from capsella.data.options import FolderData
from capsella.data.reading import open_image, readable
from capsella.data.splits import LabelledImages, Splits
from capsella.errors import CapsellaError, check_minimum, pluralize, warn_once
from capsella.image_options import Fit

LEAST_TRAIN, LEAST_TEST = 10, 5  # images of a class, below which `too_few` names it
LEAST_GROUPS = 5  # groups of test images, e.g. patients, below which `few_groups` names them
LARGEST_GROUP = 1 / 3  # fraction of the test images above which `few_groups` names a single group
UNEVEN = 1.5  # ratio of training images between the largest and the smallest class, from which classes are uneven
_MAX_NAMED = 8
_MIN_SIDE, _MAX_SIDE = 48, 128  # smaller images are enlarged by a whole factor, larger ones become thumbnails
_MARGIN = 4
_FIRST_PAIRS = 1000  # a contact sheet of pairs shows some of these


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
    groups: Int[np.ndarray, " images"] | None, labels: Int[np.ndarray, " images"], classes: Sequence[str]
) -> list[str]:
    """Return warnings if the test images, or those of a class, come from few groups, or mostly from one."""
    if groups is None:
        return []
    _, sizes = np.unique(groups, return_counts=True)
    if len(sizes) < LEAST_GROUPS:
        number = pluralize(len(sizes), "group")
        return [f"the test images are of {number}, too few to generalise to others, whatever the interval"]
    sentences = []
    if (share := sizes.max() / len(groups)) > LARGEST_GROUP:
        sentences.append(
            f"one group has {100 * share:.0f} % of the test images, so the result is mostly about that group"
        )
    each = {name: len(np.unique(groups[labels == label])) for label, name in enumerate(classes)}
    few = [f"{name} ({count})" for name, count in each.items() if 0 < count < LEAST_GROUPS]
    if few:
        rest = f" and {len(few) - _MAX_NAMED} more classes" if len(few) > _MAX_NAMED else ""
        named = f"{', '.join(few[:_MAX_NAMED])}{rest}"
        sentences.append(f"test images of fewer than {LEAST_GROUPS} groups, too few to generalise to others: {named}")
    return sentences


def too_few(splits: Splits) -> list[str]:
    """Return warnings about classes with few images, about few groups, and about uneven classes."""
    counts = describe(splits)
    sentences = []
    if isinstance(splits.test, ImageSet) and "group" in splits.test.metadata:
        few = few_groups(splits.test.metadata["group"].numpy(), splits.test.labels.numpy(), splits.test.classes)
        sentences = [f"{sentence} (--folds tests every group)" for sentence in few]
    for split, name, least, why in (
        ("train", "training", LEAST_TRAIN, "too few to learn a class from"),
        ("test", "test", LEAST_TEST, "too few to measure how well a class is recognised"),
    ):
        few = [f"{row.name} ({getattr(row, split)})" for row in counts if getattr(row, split) < least]
        if few:
            rest = f" and {len(few) - _MAX_NAMED} more classes" if len(few) > _MAX_NAMED else ""
            sentences.append(f"fewer than {least} {name} images, {why}: {', '.join(few[:_MAX_NAMED])}{rest}")
    sizes = [row.train for row in counts]
    if max(sizes) >= UNEVEN * min(sizes):
        large, small = (function(counts, key=lambda row: row.train) for function in (max, min))
        share = 100 * large.train / sum(sizes)
        sentences.append(
            f"uneven classes: {large.name} has {large.train / small.train:.1f} times the training images of "
            f"{small.name}; always answering {large.name} would be right for about {share:.0f} %, so look at the "
            "balanced accuracy; recipes for your own images balance such classes (--balance auto)"
        )
    return sentences


def warn_of_few(splits: Splits) -> None:
    """Warn of what `too_few` finds, once per process."""
    for sentence in too_few(splits):
        warn_once(f"{splits.name}: {sentence}", f"{splits.name}: {sentence}")


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
    font = ImageFont.load_default(14)
    label_width = int(max(font.getlength(name) for name in images.classes)) + 2 * _MARGIN
    columns = min(per_class, max(images.counts().values()))
    sheet_size = (label_width + columns * (width + _MARGIN), len(images.classes) * (height + _MARGIN) + _MARGIN)
    sheet = Image.new("RGB", sheet_size, "white")
    draw = ImageDraw.Draw(sheet)
    for label, name in enumerate(images.classes):
        top = _MARGIN + label * (height + _MARGIN)
        draw.text((_MARGIN, top + height // 2), name, fill="black", font=font, anchor="lm")
        members = torch.nonzero((labels == label).any(1)).flatten()
        for column, index in enumerate(members[evenly(len(members), columns)].tolist()):
            picture = _picture(images, index).resize((width, height), resample)
            sheet.paste(picture, (label_width + column * (width + _MARGIN), top))
    return sheet


def oblong_sheet(options: FolderData, most: int = 8) -> Image.Image | None:
    """Draw some of a folder's images that are not square, and what `crop`, `pad` and `squash` leave of each.

    Returns:
        One row per image, or None if all inspected images are square.
    """
    files = [options.path / file for file in folder_files(options)]
    size = options.size or _MAX_SIDE
    rows: list[Image.Image] = []
    for file in (files[row] for row in spread(len(files), 10 * most)):
        with suppress(CapsellaError), readable(file, str(file)):
            if len(rows) < most and (image := open_image(file).image) and cropped_share(image.size, (1, 1)) >= 0.01:
                rows.append(image.convert("RGB"))
    if not rows:
        return None
    titles, side = ("image", *get_args(Fit)), max(size, _MIN_SIDE) + _MARGIN
    sheet = Image.new("RGB", (5 * side, 20 + len(rows) * side), "white")
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(titles):
        draw.text((_MARGIN + side * (column + (column > 0)), 2), title, fill="black", font=ImageFont.load_default(14))
    for row, original in enumerate(rows):
        whole = ImageOps.contain(original, (2 * side - _MARGIN, side - _MARGIN))
        pictures = [whole, *(fit_image(original, (size, size), fit) for fit in get_args(Fit))]
        for column, picture in enumerate(pictures):
            sheet.paste(picture, (side * (column + (column > 0)), 20 + row * side))
    return sheet


def _picture(images: LabelledImages, index: int) -> Image.Image:
    pixels = images.take(torch.tensor([index])).images[0]
    if len(pixels) < 3:  # of a stereo pair, the left image
        return Image.fromarray(pixels[0].numpy())
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())
