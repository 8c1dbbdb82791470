"""Decoding image files: formats, modes, sizes, damage."""

import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from capsella.data import read_image, reading
from capsella.data.deep_values import read_values
from capsella.errors import CapsellaError
from capsella.image_options import Preprocessing

RGB = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
GREY = RGB[:, :, 0]


def save(folder: Path, name: str, image: Image.Image, **options: object) -> Path:
    image.save(folder / name, **options)
    return folder / name


def test_single_gif_and_webp_are_read_and_films_refused(tmp_path: Path):
    grey = save(tmp_path, "a.gif", Image.fromarray(GREY))
    assert torch.equal(read_image(grey), torch.from_numpy(GREY).expand(3, -1, -1))
    assert torch.equal(read_image(grey, channels=1), torch.from_numpy(GREY)[None])
    lossless = read_image(save(tmp_path, "a.webp", Image.fromarray(RGB), lossless=True))
    assert torch.equal(lossless, torch.from_numpy(RGB).permute(2, 0, 1))
    for name in ("film.gif", "film.webp"):
        film = save(tmp_path, name, Image.fromarray(RGB), save_all=True, append_images=[Image.fromarray(255 - RGB)])
        with pytest.raises(CapsellaError):
            read_image(film)


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


def test_sixteen_bit_grey_keeps_its_range(tmp_path: Path):
    values = np.array([[0, 128, 129, 257, 32768, 65535]], dtype=np.uint16)
    for name in ("a.png", "a.tif"):
        pixels = read_image(save(tmp_path, name, Image.fromarray(values)), value_range=(0, 65535))
        assert pixels.tolist() == [[[0, 0, 1, 1, 128, 255]]]


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


def test_deep_images_are_turned_upright(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save(tmp_path, "a.tif", Image.fromarray(GREY.astype(np.uint16)), exif=exif)
    assert np.array_equal(read_values(path), np.rot90(GREY, -1))


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
        as_array = reading.resize_array(RGB[None], Preprocessing(size, channels))[0]
        assert torch.equal(as_array, read_image(path, size, channels))


def damaged(path: Path, keep: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    return path


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.bmp", "a.tif"])
@pytest.mark.parametrize("keep", [0.7, 0.01, 0.0])
@pytest.mark.filterwarnings("ignore:Truncated File Read")
def test_a_truncated_image_is_named(tmp_path: Path, name: str, keep: float):
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = damaged(save(tmp_path, name, Image.fromarray(noise)), keep)
    with pytest.raises(CapsellaError):
        read_image(path)


def test_what_is_no_image_is_named(tmp_path: Path):
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(CapsellaError, match=r"text\.png"):
        read_image(tmp_path / "text.png")
    with pytest.raises(CapsellaError, match=r"gone\.png"):
        read_image(tmp_path / "gone.png")
    Image.fromarray(RGB).save(tmp_path / "a.ppm")
    with pytest.raises(CapsellaError):
        read_image(tmp_path / "a.ppm")


def test_a_decompression_bomb_is_refused_before_it_unpacks(tmp_path: Path):
    path = save(tmp_path, "a.bmp", Image.fromarray(GREY))
    content = bytearray(path.read_bytes())
    content[18:26] = struct.pack("<ii", 9_000, 9_000)
    path.write_bytes(content)
    with pytest.raises(CapsellaError):
        read_image(path)
    content[18:26] = struct.pack("<ii", 30_000, 30_000)
    path.write_bytes(content)
    with pytest.raises(CapsellaError, match=r"a\.bmp"):
        read_image(path)


def test_pages_and_unknown_ranges_are_refused(tmp_path: Path):
    pages = [Image.fromarray(GREY), Image.fromarray(GREY)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(CapsellaError, match=r"a\.tif"):
        read_image(tmp_path / "a.tif")
    with pytest.raises(CapsellaError):
        read_image(save(tmp_path, "f.tif", Image.fromarray(GREY.astype(np.float32))))
    with pytest.raises(CapsellaError):
        read_image(save(tmp_path, "i.tif", Image.fromarray(np.array([[-5, 70_000]], dtype=np.int32))))


def test_images_that_do_not_fit_in_memory_are_refused_at_the_first(monkeypatch: pytest.MonkeyPatch):
    read: list[int] = []

    def reader() -> tuple[torch.Tensor, None]:
        read.append(1)
        time.sleep(0.002)
        return torch.zeros(3, 1000, 1000, dtype=torch.uint8), None

    monkeypatch.setattr(reading, "free_memory", lambda: 50_000_000)
    with pytest.raises(CapsellaError):
        reading.read_all({str(number): reader for number in range(300)}, skip_broken=False)
    assert len(read) < 200


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


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\0\0\0\x20ftypavif\0\0\0\0", "AVIF"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
    ],
)
def test_another_format_under_the_name_of_an_image_is_named(tmp_path: Path, content: bytes, what: str):
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(CapsellaError, match=what):
        read_image(tmp_path / "a.jpg")


def test_a_webp_on_its_side_is_turned_upright(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save(tmp_path, "a.webp", Image.fromarray(RGB), exif=exif, lossless=True)
    assert torch.equal(read_image(path), torch.from_numpy(np.rot90(RGB, -1).copy()).permute(2, 0, 1))
