"""Files of more than 8 bits a channel: their exact values, the range that a set is read by, what is said of it."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data import FolderData, NamedData, Splits, load_data, read_image, save_split
from capsella.data import folder as folder_module
from capsella.errors import CapsellaError

from .deep_files import planar, png16, tiff

TWELVE = (0.0, 4095.0)
RGB = np.random.default_rng(0).integers(0, 4096, (5, 7, 3)).astype(np.uint16)
SCALED = np.rint(RGB * (255 / 4095)).astype(np.uint8)


def folder(path: Path, **changes: object) -> Splits:
    """What `load_data` makes of a folder; its images are the same in both classes, and that is not looked at."""
    return load_data(FolderData(path, duplicates="ignore", **changes))  # type: ignore[arg-type]


def ramp(low: int, high: int) -> np.ndarray:
    return np.linspace(low, high, 64).astype(np.uint16).reshape(8, 8)


@pytest.fixture
def camera(tmp_path: Path) -> Path:
    """Two classes of ten training and four test images; values 100 to 4000 in training, up to 60,000 in the test."""
    for name in ("a", "b"):
        for split, number, high in (("train", 10, 4000), ("test", 4, 60_000)):
            (tmp_path / "set" / split / name).mkdir(parents=True)
            for i in range(number):
                Image.fromarray(ramp(100, high)).save(tmp_path / "set" / split / name / f"{i}.tif")
    return tmp_path / "set"


def test_twelve_bits_are_not_black_and_the_range_is_of_training_images_alone(camera: Path):
    splits = folder(camera)
    assert splits.value_range == (100, 4000)
    assert (int(splits.train.images.min()), int(splits.train.images.max())) == (0, 255)
    note, outside = splits.notes
    assert "8 files" in outside  # those of the test are brighter
    assert "28 files of 16 bits per channel: values 100 to 4,000" in note
    assert "18 training images" in note  # two of twenty are held out for validation
    file = camera / splits.test.files[0]
    again = read_image(file, value_range=splits.value_range)
    assert torch.equal(again, splits.test.images[0])


def test_single_hot_pixels_do_not_set_the_range(camera: Path):
    hot = np.full((400, 400), 500, dtype=np.uint16)
    hot[200:] = 900
    hot[0, :5] = 65535
    for name in ("a", "b"):
        for i in range(10):
            Image.fromarray(hot).save(camera / "train" / name / f"{i}.tif")
    assert folder(camera, size=8).value_range == (500, 900)


@pytest.mark.parametrize("tags", [{"t280": 0, "t281": 4095}, {"t340": 0, "t341": 4095}])
def test_what_the_files_state_comes_first_unless_their_values_are_beyond(camera: Path, tags: dict[str, int]):
    for split, number in (("train", 10), ("test", 4)):
        for name in ("a", "b"):
            for i in range(number):
                (camera / split / name / f"{i}.tif").write_bytes(tiff(ramp(100, 4000), **tags))
    splits = folder(camera)
    assert splits.value_range == TWELVE
    assert "as the files state" in splits.notes[0]
    for name in ("a", "b"):  # in each class, all the same: whatever is held out, some are trained on
        for i in range(10):
            (camera / "train" / name / f"{i}.tif").write_bytes(tiff(ramp(100, 5000), **tags))
    assert folder(camera).value_range == (100, 5000)


def test_floating_point_files_are_read_by_their_values(camera: Path):
    for file in camera.rglob("*.tif"):
        Image.fromarray(ramp(0, 1000).astype(np.float32) / 1000 - 0.25).save(file)
    splits = folder(camera)
    assert splits.value_range == pytest.approx((-0.25, 0.75))
    assert int(splits.train.images.max()) == 255


def test_files_of_8_bits_are_taken_as_they_are(camera: Path):
    plain = np.full((8, 8), 77, dtype=np.uint8)
    for name in ("a", "b"):
        Image.fromarray(plain).save(camera / "train" / name / "plain.png")
    splits = folder(camera)
    assert "2 files of 8 bits" in splits.notes[0]
    sets = splits.named().values()
    kept = [i for images in sets for i, f in zip(images.images, images.files, strict=True) if "plain" in f]
    assert [image.unique().tolist() for image in kept] == [[77], [77]]
    for file in camera.rglob("*.tif"):
        Image.fromarray(plain).save(file)
    splits = folder(camera)
    assert (splits.value_range, splits.notes) == (None, ())


def test_values_that_are_all_the_same_have_no_range(camera: Path):
    for file in camera.rglob("*.tif"):
        Image.fromarray(np.full((8, 8), 300, dtype=np.uint16)).save(file)
    with pytest.raises(CapsellaError):
        folder(camera)


@pytest.mark.parametrize(
    "content",
    [png16(RGB), tiff(RGB), tiff(RGB, ">"), tiff(RGB, deflate=True), tiff(RGB, ">", deflate=True)],
    ids=["png", "little", "big", "little-deflated", "big-deflated"],
)
def test_colour_of_16_bits_is_read_to_its_lower_byte(tmp_path: Path, content: bytes):
    (tmp_path / "a.tif").write_bytes(content)
    assert np.array_equal(read_image(tmp_path / "a.tif", value_range=TWELVE).permute(1, 2, 0).numpy(), SCALED)


@pytest.mark.parametrize(
    "content",
    [
        png16(np.dstack([RGB, RGB[..., :1]])),
        tiff(RGB[..., 0], t262=0),
        planar(RGB),
        png16(RGB, transparent=(1, 2, 3)),
    ],
)
def test_what_cannot_be_brought_to_a_range_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "a.tif").write_bytes(content)
    with pytest.raises(CapsellaError, match="interleaved RGB"):
        read_image(tmp_path / "a.tif", value_range=TWELVE)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused(tmp_path: Path, value: float):
    Image.fromarray(np.array([[0.0, value]], dtype=np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(CapsellaError):
        read_image(tmp_path / "a.tif", value_range=TWELVE)


def test_too_much_for_the_memory_is_told(camera: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("capsella.data.reading.free_memory", lambda: 100_000_000)
    with pytest.raises(CapsellaError):
        folder(camera, size=4096)
    with pytest.raises(CapsellaError, match=r"1,797 images of 4096×4096×1 need"):
        load_data(NamedData(size=4096))


def test_thirty_two_bits_without_a_sign(tmp_path: Path):
    values = np.linspace(0, 2**32 - 1, 64).astype(np.uint32).reshape(8, 8)
    (tmp_path / "a.tif").write_bytes(tiff(values))
    read = read_image(tmp_path / "a.tif", value_range=(0, 2**32 - 1))[0].numpy()
    assert np.abs(read - values * (255 / (2**32 - 1))).max() <= 0.51


@pytest.mark.parametrize("room", [0.0, 0.25])
def test_deep_files_are_decoded_once_if_the_memory_allows(camera: Path, monkeypatch: pytest.MonkeyPatch, room: float):
    decoded: list[Path] = []
    open_image = folder_module.open_image
    monkeypatch.setattr(folder_module, "open_image", lambda path: decoded.append(path) or open_image(path))
    monkeypatch.setattr(folder_module, "_KEPT", room)
    splits = load_data(FolderData(camera, duplicates="ignore", size=8))
    assert splits.value_range == (100, 4000)
    assert len(decoded) == (28 if room else 56)


def test_a_broken_file_that_is_left_out_is_in_no_split_and_in_no_count(camera: Path, tmp_path: Path):
    """Its header is whole: a split file that was written without it could not be read again."""
    whole = (camera / "train" / "a" / "0.tif").read_bytes()
    (camera / "train" / "a" / "broken.tif").write_bytes(whole[:-40])
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(camera / "train" / "b" / "eight.png")
    Image.fromarray(np.full((8, 8), np.nan, np.float32)).save(camera / "train" / "b" / "nan.tif")
    splits = folder(camera, skip_broken=True, group="((?:train|test)/./[0-9e])")
    assert "28 files of 16 bits" in splits.notes[1]
    assert "1 file of 8 bits" in splits.notes[1]
    options = FolderData(camera, duplicates="ignore", skip_broken=True)
    save_split(options, tmp_path / "split.csv")
    assert not re.search("broken|nan", (tmp_path / "split.csv").read_text())
    again = folder(camera, skip_broken=True, split_file=tmp_path / "split.csv")
    assert again.value_range == splits.value_range
    assert again.train.files == splits.train.files
