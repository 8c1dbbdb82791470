"""CIFAR-10: the original in its binary form, and a lossy JPEG copy as another data set."""

import tarfile
import zlib
from pathlib import Path

import numpy as np
import torch

from capsella.data.decoding import resize_array
from capsella.data.download import find_or_download
from capsella.data.images import ImageSet
from capsella.data.npz import image_set, load_arrays
from capsella.data.options import NamedData
from capsella.data.sources.base import Source
from capsella.data.splits import SourceSplits
from capsella.errors import CapsellaError, errors_of

_ARCHIVE = "cifar10/cifar-10-binary.tar.gz"
_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
_MEMBERS = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
_JPEG = {"train": "cifar10/cifar10_jpeg_train.npz", "test": "cifar10/cifar10_jpeg_test.npz"}
_JPEG_GET = "no public mirror has it in this form; the source cifar10 downloads the original"
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CITATION = "Krizhevsky 2009, technical report, University of Toronto"


def _read_original(options: NamedData) -> SourceSplits:
    path = find_or_download(_ARCHIVE, [_URL], f"md5:{_MD5}", "use the JPEG copy, cifar10-jpeg")
    return SourceSplits("cifar10", train=_read_split(path, "train", options), test=_read_split(path, "test", options))


def _read_split(path: Path, split: str, options: NamedData) -> ImageSet:
    # A record is one byte of label, then 32×32 bytes each of red, green and blue.
    try:
        with tarfile.open(path, "r:gz") as archive:
            files = [archive.extractfile(f"cifar-10-batches-bin/{name}") for name in _MEMBERS[split]]
            content = b"".join(file.read() for file in files if file is not None)
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise CapsellaError(f"{path}: cannot be read ({error}); delete it to have it downloaded") from error
    if not content or len(content) % 3073:
        raise CapsellaError(f"{path}: {split} must hold records of 3,073 bytes, got {len(content)} bytes in all")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    images = resize_array(pixels, options.preprocessing)
    with errors_of(path):
        return ImageSet(images, torch.from_numpy(records[:, 0].astype(np.int64)), _CLASSES)


def _read_jpeg(options: NamedData) -> SourceSplits:
    paths = [find_or_download(file, instead=_JPEG_GET) for file in _JPEG.values()]
    train, test = (image_set(path, load_arrays(path), options) for path in paths)
    return SourceSplits("cifar10-jpeg", train.images, test=test.images, broken=train.broken + test.broken)


_LOSSY = f"{_CITATION} (lossy JPEG copy: error rates do not compare with published ones)"
_ABOUT = ("50,000 / – / 10,000", "32×32×3", 10)
SOURCES = (
    Source("cifar10", _read_original, *_ABOUT, (_ARCHIVE,), _CITATION),
    Source("cifar10-jpeg", _read_jpeg, *_ABOUT, tuple(_JPEG.values()), _LOSSY, _JPEG_GET),
)
