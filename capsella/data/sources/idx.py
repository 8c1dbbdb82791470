"""MNIST, Fashion-MNIST and KMNIST in gzipped IDX files, and the 8×8 digits that come with scikit-learn."""

import math
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from capsella.data.decoding import resize_array
from capsella.data.download import find_or_download, gunzip
from capsella.data.holdout import hold_out_images
from capsella.data.images import ImageSet
from capsella.data.options import NamedData
from capsella.data.sources.base import Source
from capsella.data.splits import SourceSplits
from capsella.errors import CapsellaError, errors_of

_FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
_MIRRORS = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    "fashion-mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ),
    "kmnist": ("https://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
}
_SHA256 = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    "kmnist": {
        "train-images-idx3-ubyte.gz": "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
        "train-labels-idx1-ubyte.gz": "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
        "t10k-images-idx3-ubyte.gz": "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
        "t10k-labels-idx1-ubyte.gz": "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
    },
}
_CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    "kmnist": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
}
_CITATIONS = {
    "mnist": "LeCun, Bottou, Bengio, Haffner 1998, Proceedings of the IEEE 86(11)",
    "fashion-mnist": "Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747",
    "kmnist": "Clanuwat et al. 2018, arXiv:1812.01718",
}

# digits has no test split of its own; this one is the same for every split_seed
_TEST_SHARE, _TEST_SEED = 0.2, 0
MAX_BYTES = 100_000_000  # twice the largest file of these sets


def read_idx(path: Path, dimensions: int) -> UInt8[np.ndarray, "..."]:
    """Read a gzipped IDX file of bytes: magic number 0x0000 08 0d, d big-endian sizes, then the values.

    `dimensions` is 3 for images, 1 for labels. Damaged files and other types raise `CapsellaError`.
    """
    content = gunzip(path, MAX_BYTES)
    magic, expected = content[:4], bytes((0, 0, 8, dimensions))
    if magic != expected:
        raise CapsellaError(f"{path}: must start with the IDX magic number {expected.hex()}, got {magic.hex()}")
    start = 4 + 4 * dimensions
    shape = np.frombuffer(content[4 : len(content[:start]) // 4 * 4], dtype=">u4").astype(np.int64)
    if len(shape) != dimensions or len(content) - start != math.prod(shape.tolist()):
        raise CapsellaError(f"{path}: its head states sizes {shape.tolist()}, but {len(content) - start} values follow")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def files(name: str) -> tuple[str, ...]:
    """Return the files of a set, relative to the data root."""
    return tuple(f"{name}/{file}" for pair in _FILES.values() for file in pair)


def read_split(options: NamedData, split: str) -> ImageSet:
    """Read the images of `train` or `test`.

    Raises:
        CapsellaError: a file is missing or damaged, or images and labels do not fit.
    """
    name = options.name
    images_file, labels_file = (
        find_or_download(f"{name}/{file}", [url + file for url in _MIRRORS[name]], f"sha256:{_SHA256[name][file]}")
        for file in _FILES[split]
    )
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    pixels = resize_array(images[..., None], options.preprocessing)
    with errors_of(f"{images_file} and {labels_file} do not belong together"):
        return ImageSet(pixels, torch.from_numpy(labels.astype(np.int64)), _CLASSES[name])


def _read(options: NamedData) -> SourceSplits:
    return SourceSplits(options.name, train=read_split(options, "train"), test=read_split(options, "test"))


def _read_digits(options: NamedData) -> SourceSplits:
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


_UCI = "Alpaydin, Kaynak 1998, UCI Machine Learning Repository (the test half of optdigits)"
SOURCES = (
    Source("digits", _read_digits, "1,438 / – / 359", "8×8×1", 10, (), _UCI, "comes with scikit-learn"),
    *(
        Source(name, _read, "60,000 / – / 10,000", "28×28×1", 10, files(name), citation)
        for name, citation in _CITATIONS.items()
    ),
)
