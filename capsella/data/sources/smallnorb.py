"""smallNORB: photographs of toys from known viewpoints, as the original `.mat.gz` files or a lossy JPEG copy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsella.data.decoding import resize_array
from capsella.data.download import find_or_download, gunzip
from capsella.data.images import ImageSet
from capsella.data.npz import NpzImages, image_set, load_arrays
from capsella.data.options import NamedData
from capsella.data.sources.base import Source, arrange_viewpoints
from capsella.data.splits import SourceSplits
from capsella.errors import ArgumentError, CapsellaError, errors_of

CLASSES = ("animal", "human", "airplane", "truck", "car")
_STEM = {"train": "smallnorb-5x46789x9x18x6x2x96x96-training", "test": "smallnorb-5x01235x9x18x6x2x96x96-testing"}
_URL = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
_SHA256 = {
    f"{_STEM[split]}-{part}.mat.gz": digest
    for split, part, digest in (
        ("train", "dat", "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873"),
        ("train", "cat", "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa"),
        ("train", "info", "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32"),
        ("test", "dat", "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474"),
        ("test", "cat", "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff"),
        ("test", "info", "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2"),
    )
}
_MAGIC: dict[int, np.dtype[Any]] = {
    0x1E3D4C54: np.dtype("<i4"),
    0x1E3D4C55: np.dtype("u1"),
}
MAX_BYTES = 500_000_000  # the largest file has 448,000,000
_INSTEAD = "use the JPEG copy, smallnorb-jpeg"
_JPEG = {"train": "smallnorb/smallnorb_train.npz", "test": "smallnorb/smallnorb_test.npz"}
POSED_TEST_INSTANCES = (0, 1)  # toys that smallnorb-jpeg-poses tests on; it trains on 2, 3 and 5
_JPEG_GET = "no public mirror has it in this form; the source smallnorb downloads the original"
_CITATION = "LeCun, Huang, Bottou 2004, CVPR (for research purposes only)"
_JPEG_CITATION = f"{_CITATION} (lossy JPEG copy: error rates do not compare with published ones)"
_POSED_CITATION = f"{_JPEG_CITATION}; toys 2, 3, 5 / 0, 1 of its test file, by elevation"


def read_norb_matrix(path: Path) -> np.ndarray:
    """Read one of NORB's packed binary matrices, `.mat.gz` (they are no MATLAB files).

    Little-endian: a magic number for the type, the number of dimensions, at least three sizes, then the values.

    Raises:
        CapsellaError: the magic number is wrong, or the file is cut short or too long.
    """
    content = gunzip(path, MAX_BYTES)
    if len(content) < 20:
        raise CapsellaError(f"{path}: must begin with 20 bytes of header, got {len(content)} bytes")
    magic, dimensions = np.frombuffer(content, dtype="<u4", count=2).tolist()
    header = 8 + 4 * max(3, dimensions)
    if magic not in _MAGIC or not 1 <= dimensions <= 8 or len(content) < header:
        raise CapsellaError(f"{path}: must begin with a known type and 1 to 8 sizes, got 0x{magic:08X}, {dimensions}")
    shape = np.frombuffer(content, dtype="<u4", count=dimensions, offset=8).tolist()
    dtype = _MAGIC[magic]
    expected = header + dtype.itemsize * int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise CapsellaError(f"{path}: must have {expected} bytes for shape {tuple(shape)}, got {len(content)}")
    return np.frombuffer(content, dtype=dtype, offset=header).reshape(shape)


def _read_original(options: NamedData) -> SourceSplits:
    sets = {split: _read_split(stem, options) for split, stem in _STEM.items()}
    return arrange_viewpoints(SourceSplits("smallnorb", train=sets["train"], test=sets["test"]), options)


def _read_split(stem: str, options: NamedData) -> ImageSet:
    """Read `dat` [n 2 96 96], `cat` [n] and `info` [n 4].

    The columns of `info` are instance, elevation 0–8, azimuth in tens of degrees, and lighting.
    """
    files = {part: f"{stem}-{part}.mat.gz" for part in ("dat", "cat", "info")}
    paths = {
        part: find_or_download(f"smallnorb/{file}", [_URL + file], f"sha256:{_SHA256[file]}", _INSTEAD)
        for part, file in files.items()
    }
    dat, cat, info = (read_norb_matrix(path) for path in paths.values())
    if dat.ndim != 4 or dat.shape[1] != 2 or cat.shape != dat.shape[:1] or info.shape != (len(dat), 4):
        raise CapsellaError(
            f"{paths['dat']}: must hold [n 2 h w] images with [n] categories and [n 4] infos beside it, "
            f"got {dat.shape}, {cat.shape} and {info.shape}"
        )
    cameras = [resize_array(dat[:, camera, :, :, None], options.preprocessing) for camera in _cameras(options)]
    instance, elevation, azimuth, lighting = torch.from_numpy(info.astype(np.int64)).unbind(1)
    metadata = {"instance": instance, "elevation": 30 + 5 * elevation, "azimuth": 10 * azimuth, "lighting": lighting}
    with errors_of(paths["cat"]):
        return ImageSet(torch.cat(cameras, 1), torch.from_numpy(cat.astype(np.int64)), CLASSES, None, metadata)


def _read_jpeg(options: NamedData) -> SourceSplits:
    train, test = (_read_jpeg_split(find_or_download(file, instead=_JPEG_GET), options) for file in _JPEG.values())
    parts = SourceSplits("smallNORB (JPEG copy)", train.images, test=test.images, broken=train.broken + test.broken)
    return arrange_viewpoints(parts, options)


def _read_posed_jpeg(options: NamedData) -> SourceSplits:
    """Read the test file, the only one of the copy with poses, split by toys: three train, two test."""
    read = _read_jpeg_split(find_or_download(_JPEG["test"], instead=_JPEG_GET), options)
    tested = torch.isin(read.images.metadata["instance"], torch.tensor(POSED_TEST_INSTANCES))
    train, test = (read.images.subset(mask.nonzero().flatten()) for mask in (~tested, tested))
    parts = SourceSplits("smallNORB (JPEG copy, toys with poses)", train, test=test, broken=read.broken)
    return arrange_viewpoints(parts, options)


def _read_jpeg_split(path: Path, options: NamedData) -> NpzImages:
    # Image files 2i and 2i + 1 are the left and right camera of pair i; other arrays have one number per pair.
    arrays = load_arrays(path)
    alone = ("image", "image_offset", "classes")
    twice = {name: values if name in alone else values.repeat(2) for name, values in arrays.items()}
    pairs, options = np.arange(len(arrays["category"])), replace(options, group=None)
    first, *others = (image_set(path, twice, options, rows=2 * pairs + camera) for camera in _cameras(options))
    if others and (first.broken or others[0].broken):
        raise CapsellaError(f"{path}: both images of every pair must be readable for camera 'both'")
    pixels = torch.cat([part.images.images for part in (first, *others)], 1)
    metadata = dict(first.images.metadata)
    if "elevation" in metadata:
        metadata["elevation"] = 30 + 5 * metadata["elevation"]  # degrees
    return first._replace(images=replace(first.images, images=pixels, metadata=metadata))


def _cameras(options: NamedData) -> tuple[int, ...]:
    if options.camera == "both" and options.channels is not None:
        raise ArgumentError("channels", "be left out with camera 'both', which has two", options.channels)
    return {"left": (0,), "right": (1,), "both": (0, 1)}[options.camera]


_ORIGINAL_FILES, _JPEG_FILES = tuple(f"smallnorb/{file}" for file in _SHA256), tuple(_JPEG.values())
_IMAGES, _ABOUT = "24,300 / – / 24,300", ("96×96×1, or ×2 for both cameras", 5)
_POSED_IMAGES = "14,580 / – / 9,720"
SOURCES = (
    Source("smallnorb", _read_original, _IMAGES, *_ABOUT, _ORIGINAL_FILES, _CITATION),
    Source("smallnorb-jpeg", _read_jpeg, _IMAGES, *_ABOUT, _JPEG_FILES, _JPEG_CITATION, _JPEG_GET),
    Source(
        "smallnorb-jpeg-poses", _read_posed_jpeg, _POSED_IMAGES, *_ABOUT, _JPEG_FILES[1:], _POSED_CITATION, _JPEG_GET
    ),
)
