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


def written(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def saved(pixels):
    return written(Image.fromarray(pixels))


def random(*shape):
    return np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)


def test_a_phone_s_picture_is_taken_and_judged_upright(grey):
    """Its JPEG may hold a second picture, and lie on its side."""
    first, second = (Image.fromarray(random(34, 51)) for _ in range(2))
    for orientation, said in ((1, "has 51×34 pixels"), (6, "has 34×51 pixels")):
        exif = Image.Exif()
        exif[0x0112] = orientation
        content = written(first, "MPO", save_all=True, append_images=[second], exif=exif)
        pixels, sentences = read_upload(content, "p.jpg", grey)
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


def claiming(width, height):
    """A PNG of 8×8 whose header says something else."""
    content = bytearray(saved(random(8, 8)))
    content[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (lambda: b"no image at all", r"x\.png: cannot be read as an image \(no image of a format that is read"),
        (lambda: saved(random(200, 200))[:2000], r"x\.png: cannot be read as an image"),
        # 50 megapixels of one grey in a few kilobytes
        (lambda: written(Image.new("1", (10_000, 5_000))), r"x\.png: .*50\.0 megapixels; at most 40 are read"),
        (lambda: claiming(50_000, 50_000), r"x\.png: cannot be read as an image .*decompression bomb"),
        (lambda: bytes(20_000_001), r"x\.png: must be at most 20 MB, got 20\.0 MB"),
    ],
)
def test_a_bad_file_gets_a_sentence(content, text, grey):
    with pytest.raises(CapsellaError, match=text):
        read_upload(content(), "x.png", grey)


def test_a_drawing_is_brought_to_the_networks_size(grey):
    canvas = np.zeros((224, 224, 4), np.uint8)
    canvas[..., 3] = 255
    canvas[:, 100:130, :3] = 255
    image = read_sketch(saved(canvas), grey)
    assert image.shape == (1, SIZE, SIZE)
    assert image[0, :, 8].min() > 230
    assert image[0, :, 0].max() == 0


def test_what_is_no_drawing(grey, colour):
    for content in (b"GIF89a", saved(random(8, 8))[:60], claiming(2000, 2000)):
        with pytest.raises(CapsellaError, match="drawing: must come from the page's own canvas"):
            read_sketch(content, grey)
    with pytest.raises(CapsellaError, match="empty"):
        read_sketch(written(Image.new("L", (224, 224))), grey)
    with pytest.raises(CapsellaError, match="colour"):
        read_sketch(written(Image.new("L", (224, 224), 255)), colour)
