"""Decoding image files: formats, modes, sizes, damage, more than 8 bits a channel."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from capsella.data import FolderData, NamedData, Splits, decoding, load_data, read_image
from capsella.data.image_file import read_values
from capsella.errors import CapsellaError
from capsella.image_options import Preprocessing

from .deep_files import png16, tiff

RGB = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
GREY = RGB[:, :, 0]


def save(folder: Path, name: str, image: Image.Image, **options: object) -> Path:
    image.save(folder / name, **options)
    return folder / name


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.TIFF"])
def test_lossless_formats_give_the_pixels(tmp_path: Path, name: str):
    colour = read_image(save(tmp_path, name, Image.fromarray(RGB)))
    assert torch.equal(colour, torch.from_numpy(RGB).permute(2, 0, 1))
    assert torch.equal(read_image(save(tmp_path, name, Image.fromarray(GREY))), torch.from_numpy(GREY)[None])


def test_channels_are_converted(tmp_path: Path):
    colour = save(tmp_path, "colour.png", Image.fromarray(RGB))
    grey = save(tmp_path, "grey.png", Image.fromarray(GREY))
    assert read_image(grey, channels=3).tolist() == [GREY.tolist()] * 3
    luma = RGB @ np.array([0.299, 0.587, 0.114])  # Rec. 601
    assert (read_image(colour, channels=1)[0].double() - torch.from_numpy(luma)).abs().max() <= 1


def test_palette_one_bit_and_transparency(tmp_path: Path):
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putdata([0, 1])
    assert read_image(save(tmp_path, "p.png", palette)).flatten(1).tolist() == [[10, 200], [20, 100], [30, 50]]
    assert read_image(save(tmp_path, "1.png", Image.fromarray(GREY > 100))).tolist() == [((GREY > 100) * 255).tolist()]
    rgba = np.array([[[200, 100, 50, 255], [200, 100, 50, 0]]], dtype=np.uint8)
    over_black = read_image(save(tmp_path, "a.png", Image.fromarray(rgba)))
    assert over_black.flatten(1).tolist() == [[200, 0], [100, 0], [50, 0]]
    grey_alpha = Image.fromarray(np.array([[[90, 255], [90, 0]]], dtype=np.uint8), "LA")
    assert read_image(save(tmp_path, "la.png", grey_alpha)).tolist() == [[[90, 0]]]


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
@pytest.mark.parametrize("pixels", [RGB, GREY], ids=["colour", "grey"])
def test_images_are_turned_upright(tmp_path: Path, name: str, pixels: np.ndarray):
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side: to be turned 90° clockwise
    path = save(tmp_path, name, Image.fromarray(pixels), exif=exif)
    upright = np.atleast_3d(np.rot90(pixels, -1)).copy()
    assert torch.equal(read_image(path), torch.from_numpy(upright).permute(2, 0, 1))
    if name == "a.tif" and pixels.ndim == 2:
        deep = save(tmp_path, "deep.tif", Image.fromarray(pixels.astype(np.uint16)), exif=exif)
        assert np.array_equal(read_values(deep), np.rot90(pixels, -1))


def test_resizing_crops_the_centre_and_keeps_flat_areas_flat(tmp_path: Path):
    wide = np.zeros((20, 60), dtype=np.uint8)
    wide[:, 20:40] = 180  # the centre square
    path = save(tmp_path, "a.png", Image.fromarray(wide))
    assert read_image(path, size=(10, 10))[:, :, 2:-2].unique().tolist() == [180]  # but for the filter's reach
    assert read_image(path, size=(10, 10)).min() > 160
    assert read_image(path, size=(5, 15)).shape == (1, 5, 15)
    assert torch.equal(read_image(path, size=(20, 60)), torch.from_numpy(wide)[None])


def test_resizing_is_antialiased(tmp_path: Path):
    stripes = np.zeros((64, 64), dtype=np.uint8)
    stripes[:, ::2] = 254
    pixels = read_image(save(tmp_path, "a.png", Image.fromarray(stripes)), size=(8, 8))
    assert (pixels.int() - 127).abs().max() <= 12  # without antialiasing: all 0 or all 254


def test_arrays_are_treated_like_files(tmp_path: Path):
    path = save(tmp_path, "a.png", Image.fromarray(RGB))
    for size, channels in [(None, None), ((3, 3), None), ((12, 12), 1), (None, 1)]:
        as_array = decoding.resize_array(RGB[None], Preprocessing(size, channels))[0]
        assert torch.equal(as_array, read_image(path, size, channels))


def test_colour_profiles_are_converted_to_srgb(tmp_path: Path):
    """An sRGB profile, and one whose red and blue primaries are swapped: stored red is shown as blue."""
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    swapped = srgb.replace(b"rXYZ", b"\0tmp").replace(b"bXYZ", b"rXYZ").replace(b"\0tmp", b"bXYZ")
    alpha = Image.fromarray(np.dstack([RGB[..., ::-1], np.full(RGB.shape[:2], 255, np.uint8)]))
    plain = read_image(save(tmp_path, "plain.png", Image.fromarray(RGB), icc_profile=srgb))
    assert torch.equal(plain, torch.from_numpy(RGB).permute(2, 0, 1))
    for picture in (Image.fromarray(np.ascontiguousarray(RGB[..., ::-1])), alpha):
        shown = read_image(save(tmp_path, "swapped.png", picture, icc_profile=swapped))
        assert (shown.int() - plain.int()).abs().max() <= 2
    damaged = read_image(save(tmp_path, "damaged.png", Image.fromarray(RGB), icc_profile=b"no profile"))
    assert torch.equal(damaged, plain)


TWELVE = (0.0, 4095.0)
DEEP = np.random.default_rng(0).integers(0, 4096, (5, 7, 3)).astype(np.uint16)
SCALED = np.rint(DEEP * (255 / 4095)).astype(np.uint8)


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
    assert "values 100 to 4,000" in note
    again = read_image(camera / splits.test.files[0], value_range=splits.value_range)
    assert torch.equal(again, splits.test.images[0])


def test_single_hot_pixels_do_not_set_the_range(camera: Path):
    hot = np.full((400, 400), -0.25, np.float32)
    hot[200:] = 0.75
    hot[0, :5] = 65535
    for file in camera.rglob("*.tif"):
        Image.fromarray(hot).save(file)
    splits = folder(camera, size=8)
    assert splits.value_range == (-0.25, 0.75)
    assert int(splits.train.images.max()) == 255


def test_files_of_8_bits_are_taken_as_they_are(camera: Path):
    plain = np.full((8, 8), 77, dtype=np.uint8)
    for name in ("a", "b"):
        Image.fromarray(plain).save(camera / "train" / name / "plain.png")
    splits = folder(camera)
    sets = splits.named().values()
    kept = [i for images in sets for i, f in zip(images.images, images.files, strict=True) if "plain" in f]
    assert [image.unique().tolist() for image in kept] == [[77], [77]]
    for file in camera.rglob("*.tif"):
        Image.fromarray(plain).save(file)
    splits = folder(camera)
    assert (splits.value_range, splits.notes) == (None, ())


@pytest.mark.parametrize(
    "content",
    [png16(DEEP), tiff(DEEP), tiff(DEEP, ">")],
    ids=["png", "little", "big"],
)
def test_colour_of_16_bits_is_read_to_its_lower_byte(tmp_path: Path, content: bytes):
    (tmp_path / "a.tif").write_bytes(content)
    assert np.array_equal(read_image(tmp_path / "a.tif", value_range=TWELVE).permute(1, 2, 0).numpy(), SCALED)


def test_too_much_for_the_memory_is_told(camera: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("capsella.data.decoding.free_memory", lambda: 100_000_000)
    with pytest.raises(CapsellaError):
        folder(camera, size=4096)
    with pytest.raises(CapsellaError, match=r"1,797 images of 4096×4096×1 need"):
        load_data(NamedData(size=4096))
