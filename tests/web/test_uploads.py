import io
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data.reading import read_image
from capsella.errors import CapsellaError
from capsella.web.uploads import read_sketch, read_upload

from .conftest import SIZE, model


@pytest.fixture(scope="module")
def grey():
    return model()


@pytest.fixture(scope="module")
def colour():
    return model(channels=3)


def saved(pixels):
    return as_png(Image.fromarray(pixels))


def as_png(image):
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def random(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype=dtype)


def test_a_phone_s_picture_is_taken_and_judged_upright(grey):
    """Its JPEG may hold a second picture, and lie on its side."""
    wide, high = SIZE if isinstance(SIZE, tuple) else (SIZE, SIZE)
    first, second = (Image.fromarray(random(2 * high, 3 * wide)) for _ in range(2))
    for orientation, said in ((1, f"has {3 * wide}×{2 * high} pixels"), (6, f"has {2 * high}×{3 * wide} pixels")):
        exif = Image.Exif()
        exif[0x0112] = orientation
        buffer = io.BytesIO()
        first.save(buffer, format="MPO", save_all=True, append_images=[second], exif=exif)
        assert Image.open(buffer).n_frames == 2
        pixels, sentences = read_upload(buffer.getvalue(), "p.jpg", grey)
        assert pixels.shape[1:] == grey.image_size
        assert said in sentences[0]


def test_every_change_is_said_and_is_that_of_prediction(grey, tmp_path):
    content = saved(random(40, 30, 4))
    image, said = read_upload(content, "cell.png", grey)
    (tmp_path / "a.png").write_bytes(content)
    torch.testing.assert_close(image, read_image(tmp_path / "a.png", (SIZE, SIZE), 1))
    assert said[0] == "cell.png has 30×40 pixels: the middle was cut out and resized to the network's 17×17"
    assert "its colours became grey, which is what the network takes" in said
    assert "what was transparent became black" in said


def test_sixteen_bits_become_eight_and_it_is_said(colour):
    deep = saved(random(34, 34, dtype=np.uint16))
    with pytest.raises(CapsellaError, match="has 16 bits a channel, and this network was trained on images of 8"):
        read_upload(deep, "a.png", colour)
    colour.value_range = (50.0, 4000.0)
    with pytest.raises(CapsellaError, match=r"^a\.png: .*50 to 4000"):  # most of its values are above
        read_upload(deep, "a.png", colour)
    colour.value_range = (6000.0, 60_000.0)
    _, said = read_upload(deep, "a.png", colour)
    assert said[:2] == [
        "a.png has 34×34 pixels: resized to the network's 17×17",
        "its values 6,000 to 60,000, the network's range, became black to white",
    ]
    assert len(said) == 3


def animated(kind):
    frames, buffer = [Image.fromarray(random(20, 20)), Image.fromarray(255 - random(20, 20))], io.BytesIO()
    frames[0].save(buffer, format=kind, save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def ppm():
    buffer = io.BytesIO()
    Image.new("L", (9, 9)).save(buffer, format="PPM")
    return buffer.getvalue()


def claiming(width, height):
    """A PNG of 8×8 whose header says something else."""
    content = bytearray(saved(random(8, 8)))
    content[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (lambda: b"no image at all", r"x\.png: is damaged, or no image; PNG, JPEG, BMP, TIFF, GIF and WebP"),
        (lambda: b"", r"x\.png: is damaged, or no image"),
        (lambda: saved(random(200, 200))[:2000], r"x\.png: cannot be read as an image"),
        (lambda: animated("GIF"), r"x\.png: must be a single picture, got 2 \(animated"),
        (lambda: animated("PNG"), r"x\.png: must be a single picture, got 2 \(animated"),
        (ppm, r"must be PNG, JPEG, BMP, TIFF, GIF or WebP, got PPM"),
        # 50 megapixels of one grey in a few kilobytes
        (
            lambda: as_png(Image.new("1", (10_000, 5_000))),
            r"too large, .* at most 40 megapixels, got .* = 50\.0",
        ),
        (lambda: claiming(12_000, 12_000), r"too large, must have at most 40 megapixels, got 12000×12000 = 144\.0"),
        (lambda: claiming(50_000, 50_000), r"too large, must have at most 40 megapixels, got 2,500\.0"),
        (lambda: bytes(20_000_001), r"x\.png: must be at most 20 MB, got 20\.0 MB"),
    ],
)
def test_a_bad_file_gets_a_sentence(content, text, grey, recwarn):
    with pytest.raises(CapsellaError, match=text):
        read_upload(content(), "x.png", grey)
    assert not recwarn.list


def test_a_drawing_is_brought_to_the_networks_size(grey):
    canvas = np.zeros((224, 224, 4), np.uint8)
    canvas[..., 3] = 255
    canvas[:, 100:130, :3] = 255
    image = read_sketch(saved(canvas), grey)
    assert image.shape == (1, SIZE, SIZE)
    assert image[0, :, 8].min() > 230
    assert image[0, :, 0].max() == 0


@pytest.mark.parametrize("content", [b"", b"GIF89a", bytes(100), saved(random(8, 8))[:60], claiming(2000, 2000)])
def test_what_is_no_drawing(content, grey):
    with pytest.raises(CapsellaError, match="drawing: must come from the page's own canvas"):
        read_sketch(content, grey)


def test_an_empty_canvas_or_a_network_of_colour(grey, colour):
    with pytest.raises(CapsellaError, match="empty"):
        read_sketch(as_png(Image.new("L", (224, 224))), grey)
    with pytest.raises(CapsellaError, match="colour"):
        read_sketch(as_png(Image.new("L", (224, 224), 255)), colour)
