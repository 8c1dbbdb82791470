"""smallNORB: photographs of toys from known viewpoints, as the original `.mat` files or a lossy JPEG copy."""

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsella.data.download import data_root, find, find_or_download, gunzip
from capsella.data.images import ImageSet
from capsella.data.npz import image_set, load_arrays
from capsella.data.options import NamedData
from capsella.data.reading import resize_array
from capsella.data.sources.base import Source
from capsella.data.sources.viewpoints import arrange_viewpoints
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
    0x1E3D4C51: np.dtype("<f4"),
    0x1E3D4C53: np.dtype("<f8"),
    0x1E3D4C54: np.dtype("<i4"),
    0x1E3D4C55: np.dtype("u1"),
    0x1E3D4C56: np.dtype("<i2"),
}
MAX_BYTES = 500_000_000  # the largest file has 448,000,000
_INSTEAD = "A JPEG copy is the source smallnorb-jpeg. "
_JPEG = {"train": "smallnorb/smallnorb_train.npz", "test": "smallnorb/smallnorb_test.npz"}
POSED_TEST_INSTANCES = (0, 1)  # toys that smallnorb-jpeg-poses tests on; it trains on 2, 3 and 5
_JPEG_GET = "no public mirror has it in this form; the source smallnorb downloads the original"
_CITATION = "LeCun, Huang, Bottou 2004, CVPR (for research purposes only)"
_JPEG_CITATION = f"{_CITATION} (lossy JPEG copy: error rates do not compare with published ones)"
_POSED_CITATION = f"{_JPEG_CITATION}; toys 2, 3, 5 / 0, 1 of its test file, by elevation"


def read_norb_matrix(path: Path) -> np.ndarray:
    """Read one of NORB's binary matrices, `.mat` or `.mat.gz` (they are no MATLAB files).

    Little-endian: a magic number for the type, the number of dimensions, at least three sizes, then the values.

    Raises:
        CapsellaError: the magic number is wrong, or the file is cut short or too long.
    """
    try:
        content = gunzip(path, MAX_BYTES) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise CapsellaError(f"{path}: cannot be read ({error})") from error
    if len(content) < 20:
        raise CapsellaError(f"{path}: must begin with 20 bytes of header, got {len(content)} bytes")
    magic, dimensions = np.frombuffer(content, dtype="<u4", count=2).tolist()
    if magic not in _MAGIC:
        known = ", ".join(f"0x{number:08X}" for number in _MAGIC)
        raise CapsellaError(f"{path}: the magic number must be one of {known}, got 0x{magic:08X}")
    header = 8 + 4 * max(3, dimensions)
    if not 1 <= dimensions <= 8 or len(content) < header:
        raise CapsellaError(f"{path}: must have 1 to 8 dimensions with a size each, got {dimensions}")
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
    paths = {part: _find(f"{stem}-{part}.mat") for part in ("dat", "cat", "info")}
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


def _find(name: str) -> Path:
    """Return the unpacked file if it exists, or else the packed one, downloaded if necessary."""
    unpacked = data_root() / "smallnorb" / name
    if unpacked.is_file():
        return unpacked
    packed = f"{name}.gz"
    return find_or_download(f"smallnorb/{packed}", [_URL + packed], f"sha256:{_SHA256[packed]}", _INSTEAD)


def _read_jpeg(options: NamedData) -> SourceSplits:
    if options.viewpoints != "all":
        raise CapsellaError(
            f"smallNORB (JPEG copy): viewpoints: the images must have their {options.viewpoints} as metadata, and "
            "those to train on have none; the source smallnorb-jpeg-poses has elevations"
        )
    sets = {split: _read_jpeg_split(find(file, _JPEG_GET), options) for split, file in _JPEG.items()}
    parts = SourceSplits(
        "smallNORB (JPEG copy)", train=sets["train"][0], test=sets["test"][0], broken=sets["train"][1] + sets["test"][1]
    )
    return arrange_viewpoints(parts, options)


def _read_posed_jpeg(options: NamedData) -> SourceSplits:
    """Read the test file, the only one of the copy with poses, split by toys: three train, two test."""
    images, broken = _read_jpeg_split(find(_JPEG["test"], _JPEG_GET), options)
    tested = torch.isin(images.metadata["instance"], torch.tensor(POSED_TEST_INSTANCES))
    train, test = (images.subset(mask.nonzero().flatten()) for mask in (~tested, tested))
    return arrange_viewpoints(
        SourceSplits("smallNORB (JPEG copy, toys with poses)", train=train, test=test, broken=broken), options
    )


def _read_jpeg_split(path: Path, options: NamedData) -> tuple[ImageSet, tuple[str, ...]]:
    # Image files 2i and 2i + 1 are the left and right camera of pair i; other arrays have one number per pair.
    arrays = load_arrays(path)
    alone = ("image", "image_offset", "classes")
    twice = {name: values if name in alone else values.repeat(2) for name, values in arrays.items()}
    pairs = np.arange(len(arrays["category"]))
    read = [
        image_set(path, twice, replace(options, group=None), rows=2 * pairs + camera) for camera in _cameras(options)
    ]
    images, broken = read[0].images, sum((part.broken for part in read), ())
    if len(read) == 2:
        if broken:
            raise CapsellaError(f"{path}: both images of every pair must be readable for camera 'both'; {broken[0]}")
        images = replace(images, images=torch.cat([part.images.images for part in read], 1))
    if "elevation" in images.metadata:
        images.metadata["elevation"] = 30 + 5 * images.metadata["elevation"]  # degrees
    return images, broken


def _cameras(options: NamedData) -> tuple[int, ...]:
    if options.camera == "both" and options.channels is not None:
        raise ArgumentError("channels", "be left out with camera 'both', which has two", options.channels)
    return {"left": (0,), "right": (1,), "both": (0, 1)}[options.camera]


SOURCES = tuple(
    Source(
        name=name,
        read=read,
        images=images,
        size="96×96×1, or ×2 for both cameras",
        classes=5,
        files=files,
        get="downloaded on first use" if name == "smallnorb" else _JPEG_GET,
        citation=citation,
    )
    for name, read, images, files, citation in (
        ("smallnorb", _read_original, "24,300 / – / 24,300", tuple(f"smallnorb/{f}" for f in _SHA256), _CITATION),
        ("smallnorb-jpeg", _read_jpeg, "24,300 / – / 24,300", tuple(_JPEG.values()), _JPEG_CITATION),
        ("smallnorb-jpeg-poses", _read_posed_jpeg, "14,580 / – / 9,720", (_JPEG["test"],), _POSED_CITATION),
    )
)
