"""CIFAR-10: the original in its binary form, and a lossy JPEG copy as another data set."""

import tarfile
import zlib
from pathlib import Path

import numpy as np
import torch

from capsella.data.download import find, find_or_download
from capsella.data.images import ImageSet
from capsella.data.npz import image_set, load_arrays
from capsella.data.options import NamedData
from capsella.data.reading import resize_array
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
    path = find_or_download(_ARCHIVE, [_URL], f"md5:{_MD5}", "A JPEG copy is the source cifar10-jpeg. ")
    return SourceSplits("cifar10", train=_read_split(path, "train", options), test=_read_split(path, "test", options))


def _read_split(path: Path, split: str, options: NamedData) -> ImageSet:
    # A record is one byte of label, then 32×32 bytes each of red, green and blue.
    try:
        with tarfile.open(path, "r:gz") as archive:
            content = b"".join(_member(archive, f"cifar-10-batches-bin/{name}") for name in _MEMBERS[split])
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise CapsellaError(f"{path}: cannot be read ({error}); delete it to have it downloaded") from error
    if not content or len(content) % 3073:
        raise CapsellaError(f"{path}: {split} must hold records of 3,073 bytes, got {len(content)} bytes in all")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    images = resize_array(pixels, options.preprocessing)
    with errors_of(path):
        return ImageSet(images, torch.from_numpy(records[:, 0].astype(np.int64)), _CLASSES)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is not a file")
    return file.read()


def _read_jpeg(options: NamedData) -> SourceSplits:
    train, test = (
        image_set(path, load_arrays(path), options) for path in (find(file, _JPEG_GET) for file in _JPEG.values())
    )
    return SourceSplits("cifar10-jpeg", train=train[0], test=test[0], broken=train[1] + test[1])


SOURCES = (
    Source(
        name="cifar10",
        read=_read_original,
        images="50,000 / – / 10,000",
        size="32×32×3",
        classes=10,
        files=(_ARCHIVE,),
        get="downloaded on first use",
        citation=_CITATION,
    ),
    Source(
        name="cifar10-jpeg",
        read=_read_jpeg,
        images="50,000 / – / 10,000",
        size="32×32×3",
        classes=10,
        files=tuple(_JPEG.values()),
        get=_JPEG_GET,
        citation=f"{_CITATION} (lossy JPEG copy: error rates do not compare with published ones)",
    ),
)
