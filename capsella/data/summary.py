"""What a set holds, as numbers and as a picture."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image, ImageDraw, ImageFont

from capsella.data.batching import evenly
from capsella.data.images import ImageSet
from capsella.data.splits import LabelledImages, Splits
from capsella.errors import check_minimum, pluralize, warn_once

LEAST_TRAIN, LEAST_TEST = 10, 5
"""Images of a class, below which `too_few` names it."""
LEAST_GROUPS = 5
"""Groups of test images, as patients, below which `few_groups` names them: intervals have one degree less."""
LARGEST_GROUP = 1 / 3
"""Share of the test images above which `few_groups` names a single group: the mean is then mostly of that one."""
UNEVEN = 1.5
"""Classes are uneven where the largest has at least this many times the training images of the smallest."""
_MOST_NAMED = 8
_LEAST_SIDE = 48  # smaller images are enlarged by a whole factor, pixels kept square
_MARGIN = 4
_FIRST_PAIRS = 1000  # a sheet of pairs takes its pictures from these


class ClassCounts(NamedTuple):
    """How many images of a class each split holds."""

    name: str
    train: int
    validation: int
    test: int


def describe(splits: Splits) -> list[ClassCounts]:
    """Images per class and split, in the order of the classes; of pairs, the images that they are made of."""
    counts = [images.counts() for images in splits.named().values()]
    return [ClassCounts(name, *(count[name] for count in counts)) for name in splits.classes]


def few_groups(
    groups: Int[np.ndarray, " images"] | None, labels: Int[np.ndarray, " images"], classes: Sequence[str]
) -> list[str]:
    """In sentences, where images to be tested, or those of a class, are of fewer than `LEAST_GROUPS` known groups.

    Also where more than `LARGEST_GROUP` of them are of one.
    """
    if groups is None:
        return []
    _, sizes = np.unique(groups, return_counts=True)
    if len(sizes) < LEAST_GROUPS:
        number = pluralize(len(sizes), "group")
        return [f"the test images are of {number}: they say little of others, whatever the interval"]
    sentences = []
    if (share := sizes.max() / len(groups)) > LARGEST_GROUP:
        sentences.append(f"one group has {100 * share:.0f} % of the test images, so they say little of the others")
    each = {name: len(np.unique(groups[labels == label])) for label, name in enumerate(classes)}
    few = [f"{name} ({count})" for name, count in each.items() if 0 < count < LEAST_GROUPS]
    if few:
        rest = f" and {len(few) - _MOST_NAMED} more classes" if len(few) > _MOST_NAMED else ""
        named = f"{', '.join(few[:_MOST_NAMED])}{rest}"
        sentences.append(f"test images of fewer than {LEAST_GROUPS} groups, too few to speak for others: {named}")
    return sentences


def too_few(splits: Splits) -> list[str]:
    """In sentences: classes with fewer than `LEAST_TRAIN` or `LEAST_TEST` images, few groups, and uneven classes.

    Nothing of it keeps one from training; the numbers of such classes say little.
    """
    counts = describe(splits)
    sentences = []
    if isinstance(splits.test, ImageSet) and "group" in splits.test.metadata:
        few = few_groups(splits.test.metadata["group"].numpy(), splits.test.labels.numpy(), splits.test.classes)
        sentences = [f"{sentence} (--folds tests every group)" for sentence in few]
    for split, name, least, why in (
        ("train", "training", LEAST_TRAIN, "too few to learn a class from"),
        ("test", "test", LEAST_TEST, "too few to say how well a class is found"),
    ):
        few = [f"{row.name} ({getattr(row, split)})" for row in counts if getattr(row, split) < least]
        if few:
            rest = f" and {len(few) - _MOST_NAMED} more classes" if len(few) > _MOST_NAMED else ""
            sentences.append(f"fewer than {least} {name} images, {why}: {', '.join(few[:_MOST_NAMED])}{rest}")
    sizes = [row.train for row in counts]
    if max(sizes) >= UNEVEN * min(sizes):
        large, small = (function(counts, key=lambda row: row.train) for function in (max, min))
        share = 100 * large.train / sum(sizes)
        sentences.append(
            f"uneven classes: {large.name} has {large.train / small.train:.1f} times the training images of "
            f"{small.name}; calling every image {large.name} would be right for about {share:.0f} %, so read the "
            "balanced accuracy; the recipes images-… balance such classes (--balance auto)"
        )
    return sentences


def warn_of_few(splits: Splits) -> None:
    """What `too_few` finds, as warnings, each once in a process: many runs are trained on the same images."""
    for sentence in too_few(splits):
        warn_once(f"{splits.name}: {sentence}", f"{splits.name}: {sentence}")


def contact_sheet(images: LabelledImages, per_class: int = 10) -> Image.Image:
    """One row a class, its name on the left, with up to `per_class` images spread evenly over the class.

    A pair may stand in the rows of both its classes.

    Raises:
        ValueError: `per_class` is below 1.
    """
    check_minimum(1, per_class=per_class)
    if not isinstance(images, ImageSet):
        images = images.subset(torch.arange(min(len(images), _FIRST_PAIRS)))
    labels = images.labels.reshape(len(images), -1)  # [n 1] or [n 2]
    scale = -(-_LEAST_SIDE // min(images.image_size))
    height, width = (side * scale for side in images.image_size)
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
            picture = _picture(images, index).resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(picture, (label_width + column * (width + _MARGIN), top))
    return sheet


def _picture(images: LabelledImages, index: int) -> Image.Image:
    pixels = images.take(torch.tensor([index])).images[0]
    if len(pixels) < 3:  # of a stereo pair, the left image
        return Image.fromarray(pixels[0].numpy())
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())
