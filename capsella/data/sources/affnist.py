"""Digits on a canvas of 40×40: MNIST placed at random, and affNIST, its test images under unseen affine maps.

All three sets train on MNIST's images in the middle of the canvas, to be shifted by up to 6 pixels in training;
validation images have fixed random places. They differ in their test images: `mnist40` places MNIST's at random,
`affnist` reads the published ones, `affnist-like` draws a substitute.
"""

import io
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import scipy
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from capsella.data.download import find_or_download
from capsella.data.holdout import hold_out_images
from capsella.data.images import ImageSet
from capsella.data.options import NamedData
from capsella.data.pairs import place
from capsella.data.sources import idx
from capsella.data.sources.base import Source, resized
from capsella.data.splits import SourceSplits
from capsella.errors import CapsellaError, errors_of

SIZE = 40
_ARCHIVE = "affnist/test.mat.zip"
_URL = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/test.mat.zip"
_INSTEAD = "use the source affnist-like, which is drawn without it"
# Seeds of the places of validation and test images, and of affine maps: the same on every machine, for every split.
_VALIDATION_SEED, _TEST_SEED, _MAPS_SEED = 1, 2, 3
ROTATION, SHEAR, SCALE = 20.0, 0.2, (0.8, 1.2)  # affNIST's ranges: ± degrees, ±, and along each axis
_AT_A_TIME = 1000  # images whose maps are in memory together


def _read(options: NamedData) -> SourceSplits:
    stored = replace(options, name="mnist", size=None, channels=None)
    train, validation = hold_out_images(idx.read_split(stored, "train"), options.validation, options.split_seed)
    if options.name == "affnist":
        test = _read_published()
    elif options.name == "mnist40":
        test = _scattered(idx.read_split(stored, "test"), _TEST_SEED)
    else:
        test = idx.read_split(stored, "test")
        test = replace(test, images=affine_like_affnist(test.images, _MAPS_SEED))
    corners = torch.full((len(train), 2), (SIZE - train.image_size[0]) // 2)
    train = replace(train, images=place(train.images, corners, (SIZE, SIZE)))
    train, validation, test = (
        resized(images, options) for images in (train, _scattered(validation, _VALIDATION_SEED), test)
    )
    return SourceSplits(options.name, train=train, validation=validation, test=test)


def _scattered(images: ImageSet, seed: int) -> ImageSet:
    """Place each image at random on the canvas."""
    room = SIZE - images.image_size[0]
    corners = np.random.default_rng(seed).integers(room + 1, size=(len(images), 2))
    return replace(images, images=place(images.images, torch.from_numpy(corners), (SIZE, SIZE)))


def affine_like_affnist(images: UInt8[Tensor, "n 1 h w"], seed: int) -> UInt8[Tensor, "n 1 40 40"]:
    """Apply a random affine map to each image, onto a canvas of 40×40, with affNIST's documented ranges.

    In this order, all drawn uniformly: scale each axis by 0.8 to 1.2, shear by −0.2 to 0.2, rotate by −20 to 20 degrees
    about the image's centre; then move to where no bright pixel leaves the canvas (to the middle if there is no such
    place). Sampling is bilinear.
    """
    if len(images) == 0:
        return images.new_empty(0, 1, SIZE, SIZE)
    rng = np.random.default_rng(seed)
    return torch.cat([_mapped(some, *_maps(some, rng)) for some in images.split(_AT_A_TIME)])


def _maps(
    images: UInt8[Tensor, "n 1 h w"], rng: np.random.Generator
) -> tuple[Float[np.ndarray, "n 2 2"], Float[np.ndarray, "n 2"]]:
    """Draw A and t of each map x → A x + t from image to canvas, as (across, down) in pixels from the centre."""
    n, _, height, width = images.shape
    angle, shear = np.radians(rng.uniform(-ROTATION, ROTATION, n)), rng.uniform(-SHEAR, SHEAR, n)
    scale, where = rng.uniform(*SCALE, (n, 2)), rng.uniform(size=(n, 2))
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], 1).reshape(n, 2, 2)
    lean = np.tile(np.eye(2), (n, 1, 1))
    lean[:, 0, 1] = shear
    A = turn @ lean * scale[:, None, :]
    down, across = np.meshgrid(np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij")
    places = np.einsum("nak,kp->nap", A, np.stack([across.ravel(), down.ravel()]))
    black = (images.numpy().reshape(n, 1, -1) == 0) & (images.numpy().reshape(n, 1, -1).any(2, keepdims=True))
    reach = np.abs(A).sum(2)  # of a pixel's light, which bilinear sampling spreads to its neighbours' centres
    least = -SIZE / 2 - np.where(black, np.inf, places).min(2) + reach
    most = SIZE / 2 - np.where(black, -np.inf, places).max(2) - reach
    t = np.where(least <= most, least + where * (most - least), (least + most) / 2)
    return A, t


def _mapped(
    images: UInt8[Tensor, "n 1 h w"], A: Float[np.ndarray, "n 2 2"], t: Float[np.ndarray, "n 2"]
) -> UInt8[Tensor, "n 1 40 40"]:
    """Map the images. Each place of the canvas is sampled at A⁻¹(x − t)."""
    half = np.array(images.shape[:1:-1]) / 2  # across, down
    back = np.linalg.inv(A) / half[None, :, None]  # to torch's coordinates from −1 to 1
    theta = np.concatenate([back * (SIZE / 2), -back @ t[:, :, None]], 2)
    grid = torch.nn.functional.affine_grid(
        torch.from_numpy(theta).float(), [len(images), 1, SIZE, SIZE], align_corners=False
    )
    return torch.nn.functional.grid_sample(images.float(), grid, align_corners=False).round().byte()


def _read_published() -> ImageSet:
    """Read the test images of affNIST from the authors' archive, which carries a checksum of its own.

    Raises:
        CapsellaError: it is damaged, or holds something else.
    """
    path = find_or_download(_ARCHIVE, [_URL], None, _INSTEAD)
    damaged = (OSError, NotImplementedError, zipfile.BadZipFile, zlib.error, scipy.io.matlab.MatReadError)
    try:
        with zipfile.ZipFile(path) as archive:
            data = scipy.io.loadmat(io.BytesIO(archive.read(path.stem)))["affNISTdata"][0, 0]
        pixels, labels = data["image"], data["label_int"].ravel()
    except (*damaged, KeyError, IndexError, ValueError, TypeError) as error:
        raise CapsellaError(f"{path}: is not affNIST's; delete it to have it downloaded ({error!r})") from error
    if pixels.dtype != np.uint8 or pixels.shape != (SIZE * SIZE, len(labels)):
        raise CapsellaError(
            f"{path}: must hold bytes [{SIZE * SIZE} n] with n labels, got {pixels.dtype} {pixels.shape}, {len(labels)}"
        )
    images = torch.from_numpy(np.ascontiguousarray(pixels.T).reshape(-1, 1, SIZE, SIZE))
    with errors_of(path):
        return ImageSet(images, torch.from_numpy(labels.astype(np.int64)), tuple("0123456789"))


_MNIST = "LeCun, Bottou, Bengio, Haffner 1998"
SOURCES = tuple(
    Source(name, _read, f"60,000 / – / {test}", f"{SIZE}×{SIZE}×1", 10, files, citation)
    for name, test, files, citation in (
        ("mnist40", "10,000", idx.files("mnist"), f"{_MNIST}, placed at random as in Sabour et al. 2017"),
        ("affnist", "320,000", (_ARCHIVE,), "Tieleman 2013, affNIST, University of Toronto"),
        ("affnist-like", "10,000", idx.files("mnist"), f"{_MNIST}, under random affine maps drawn by this package"),
    )
)
