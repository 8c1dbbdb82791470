"""smallNORB: the original binary matrices, and the JPEG copy."""

import gzip
import os
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsella.data import NamedData, load_data
from capsella.errors import CapsellaError

STEMS = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
BYTE, INT = 0x1E3D4C55, 0x1E3D4C54


def matrix(magic: int, values: np.ndarray) -> bytes:
    """The format as its authors describe it: at least three sizes, unused ones being 1."""
    sizes = [*values.shape, 1, 1][: max(3, values.ndim)]
    return np.array([magic, values.ndim, *sizes], "<u4").tobytes() + values.tobytes()


@pytest.fixture
def original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Two toys a class and split, 30 pairs of 6×6 images of each split."""
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    (tmp_path / "smallnorb").mkdir()
    arrays = {}
    for split, stem in STEMS.items():
        arrays[f"{split}-dat"] = rng.integers(0, 256, (30, 2, 6, 6), dtype=np.uint8)
        arrays[f"{split}-cat"] = np.repeat(np.arange(5, dtype="<i4"), 6)
        instances = {"train": (4, 9), "test": (0, 5)}[split]
        info = [[instances[k % 2], k % 9, 2 * ((7 * k) % 18), k % 6] for k in range(30)]
        arrays[f"{split}-info"] = np.array(info, "<i4")
        for part in ("dat", "cat", "info"):
            content = matrix(BYTE if part == "dat" else INT, arrays[f"{split}-{part}"])
            (tmp_path / f"smallnorb/{stem}-{part}.mat.gz").write_bytes(gzip.compress(content))
    return arrays


def test_original_files(original: dict[str, np.ndarray]) -> None:
    splits = load_data(NamedData("smallnorb", validation=0.2))
    assert splits.name == "smallnorb"
    assert splits.classes == ("animal", "human", "airplane", "truck", "car")
    assert np.array_equal(splits.test.images[:, 0].numpy(), original["test-dat"][:, 0])
    assert splits.test.labels.tolist() == original["test-cat"].tolist()
    info = original["test-info"]
    assert splits.test.metadata["instance"].tolist() == info[:, 0].tolist()
    assert splits.test.metadata["elevation"].tolist() == (30 + 5 * info[:, 1]).tolist()
    assert splits.test.metadata["azimuth"].tolist() == (10 * info[:, 2]).tolist()
    assert splits.test.metadata["lighting"].tolist() == info[:, 3].tolist()


@pytest.mark.parametrize(("camera", "taken"), [("right", [1]), ("both", [0, 1])])
def test_cameras(original: dict[str, np.ndarray], camera: str, taken: list[int]) -> None:
    splits = load_data(NamedData("smallnorb", camera=camera))
    assert np.array_equal(splits.test.images.numpy(), original["test-dat"][:, taken])
    smaller = load_data(NamedData("smallnorb", camera=camera, size=3))
    assert smaller.test.images.shape == (30, len(taken), 3, 3)


@pytest.fixture
def jpeg_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Ten pairs of each split, as joined PNG files: pair i is file 2i (grey 10·i) and 2i + 1 (grey 10·i + 5)."""
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    (tmp_path / "smallnorb").mkdir()
    grey = np.arange(20, dtype=np.uint8) * 5
    files = []
    for value in grey:
        file = BytesIO()
        Image.fromarray(np.full((4, 4), value, np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    arrays = {
        "image": np.frombuffer(b"".join(files), np.uint8),
        "image_offset": np.cumsum([0, *map(len, files)]),
        "category": np.arange(10) % 5,
        "classes": np.array(["animal", "human", "airplane", "truck", "car"]),
    }
    np.savez(tmp_path / "smallnorb/smallnorb_train.npz", **arrays, instance=4 + np.arange(10) // 5)
    np.savez(
        tmp_path / "smallnorb/smallnorb_test.npz", **arrays, instance=np.arange(10) // 5, elevation=np.arange(10) % 9
    )
    return grey


def test_jpeg_copy_says_so_and_pairs_its_files(jpeg_copy: np.ndarray) -> None:
    by_camera = {name: load_data(NamedData("smallnorb-jpeg", camera=name)) for name in ("left", "right", "both")}
    assert by_camera["left"].name == "smallNORB (JPEG copy)"
    assert by_camera["left"].test.images[:, 0, 0, 0].tolist() == jpeg_copy[::2].tolist()
    assert by_camera["right"].test.images[:, 0, 0, 0].tolist() == jpeg_copy[1::2].tolist()
    assert by_camera["both"].test.images[:, :, 0, 0].flatten().tolist() == jpeg_copy.tolist()
    assert by_camera["both"].test.labels.tolist() == [0, 1, 2, 3, 4] * 2


def test_the_toys_with_poses_are_parted_by_toy(jpeg_copy: np.ndarray) -> None:
    """Fifty pairs of the test file: five toys of each category, each from 30° and from 70°."""
    path = Path(os.environ["CAPSELLA_DATA"]) / "smallnorb/smallnorb_test.npz"
    arrays = dict(np.load(path))
    sizes = np.tile(np.diff(arrays["image_offset"]), 5)
    arrays |= {"image": np.tile(arrays["image"], 5), "image_offset": np.cumsum([0, *sizes])}
    arrays |= {"category": np.arange(50) % 5, "instance": np.array([0, 1, 2, 3, 5])[np.arange(50) // 5 % 5]}
    np.savez(path, **arrays | {"elevation": np.arange(50) // 25 * 8})
    (path.parent / "smallnorb_train.npz").unlink()
    options = NamedData("smallnorb-jpeg-poses", viewpoints="elevation", validation=0.3)
    for seen, elevation in (("familiar", 30), ("novel", 70)):
        splits = load_data(replace(options, test_viewpoints=seen))
        assert splits.name == "smallNORB (JPEG copy, toys with poses)"
        for part, toys, elevations, images in (
            (splits.train, {2, 3, 5}, {30}, 10),
            (splits.validation, {2, 3, 5}, {30}, 5),
            (splits.test, {0, 1}, {elevation}, 10),
        ):
            assert set(part.metadata["instance"].tolist()) <= toys
            assert set(part.metadata["elevation"].tolist()) == elevations
            assert set(part.counts().values()) == {images // 5}
    with pytest.raises(CapsellaError):
        load_data(replace(options, viewpoints="azimuth"))
