"""The real 8×8 digits that come with scikit-learn and need no download."""

import numpy as np
import torch

from capsella.data.holdout import hold_out_images
from capsella.data.images import ImageSet
from capsella.data.options import NamedData
from capsella.data.reading import resize_array
from capsella.data.sources.base import Source
from capsella.data.splits import SourceSplits

_TEST_SHARE, _TEST_SEED = 0.2, 0  # the set has no test split of its own; this one is the same for every split_seed


def _read(options: NamedData) -> SourceSplits:
    from sklearn.datasets import load_digits  # a second to import

    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)  # 0..16 in the source
    images = ImageSet(
        images=resize_array(pixels[..., None], options.preprocessing),
        labels=torch.from_numpy(digits.target.astype(np.int64)),
        classes=tuple(str(name) for name in digits.target_names),
    )
    train, test = hold_out_images(images, _TEST_SHARE, _TEST_SEED)
    return SourceSplits("digits", train=train, test=test)


SOURCES = (
    Source(
        name="digits",
        read=_read,
        images="1,438 / – / 359",
        size="8×8×1",
        classes=10,
        files=(),
        get="comes with scikit-learn",
        citation="Alpaydin, Kaynak 1998, UCI Machine Learning Repository (the test half of optdigits)",
    ),
)
