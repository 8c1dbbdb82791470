import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data.reading import read_image
from capsella.errors import CapsellaError
from capsella.explorer.uploads import read_drawing, read_upload

from .conftest import SIZE, model


@pytest.fixture(scope="module")
def grey():
    return model()


@pytest.fixture(scope="module")
def colour():
    return model(channels=3)


def saved(path, pixels, **options):
    Image.fromarray(pixels).save(path, **options)
    return path


def random(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype=dtype)


def test_a_file_that_fits_is_taken_as_it_is(grey, tmp_path):
    pixels = random(SIZE, SIZE)
    image, said = read_upload(saved(tmp_path / "a.png", pixels), "a.png", grey)
    torch.testing.assert_close(image[0], torch.from_numpy(pixels).float() / 255)
    assert said == []


def test_every_change_is_said_and_is_that_of_prediction(grey, tmp_path):
    path = saved(tmp_path / "a.png", random(40, 30, 4))
    image, said = read_upload(path, "cell.png", grey)
    torch.testing.assert_close(image, read_image(path, (SIZE, SIZE), 1).float() / 255)
    assert said[0] == "cell.png has 30×40 pixels: the middle was cut out and resized to the network's 17×17"
    assert "its colours became grey, which is what the network takes" in said
    assert "what was transparent became black" in said


def test_sixteen_bits_become_eight_and_it_is_said(colour, tmp_path):
    deep = saved(tmp_path / "a.png", random(34, 34, dtype=np.uint16))
    with pytest.raises(CapsellaError, match="has 16 bits a channel, and this network was trained on images of 8"):
        read_upload(deep, "a.png", colour)
    colour.value_range = (50.0, 4000.0)
    _, said = read_upload(deep, "a.png", colour)
    assert said == [
        "a.png has 34×34 pixels: resized to the network's 17×17",
        "its values 50 to 4,000, the network's range, became black to white",
    ]


def animated(path, kind):
    frames = [Image.fromarray(random(20, 20)), Image.fromarray(255 - random(20, 20))]
    frames[0].save(path, format=kind, save_all=True, append_images=frames[1:])


def too_many_pixels(path):
    """50 megapixels of one grey in a few kilobytes."""
    Image.new("1", (10_000, 5_000)).save(path, format="PNG")


def truncated(path):
    buffer = io.BytesIO()
    Image.fromarray(random(200, 200)).save(buffer, format="PNG")
    path.write_bytes(buffer.getvalue()[:2000])


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (
            lambda path: path.write_bytes(b"no image at all"),
            r"x\.png: is damaged, or no image; PNG, JPEG, BMP, TIFF, GIF and WebP",
        ),
        (lambda path: path.write_bytes(b""), r"x\.png: is damaged, or no image"),
        (truncated, r"x\.png: cannot be read as an image"),
        (lambda path: animated(path, "GIF"), r"x\.png: must be a single picture, got 2 \(animated"),
        (lambda path: animated(path, "PNG"), r"x\.png: must be a single picture, got 2 \(animated"),
        (
            lambda path: Image.new("L", (9, 9)).save(path, format="PPM"),
            r"must be PNG, JPEG, BMP, TIFF, GIF or WebP, got PPM",
        ),
        (too_many_pixels, r"x\.png: must have at most 40 megapixels, got 10000×5000 = 50\.0"),
        (lambda path: path.write_bytes(bytes(20_000_001)), r"x\.png: must be at most 20 MB, got 20\.0 MB"),
    ],
)
def test_a_bad_file_gets_a_sentence(write, text, grey, tmp_path):
    write(tmp_path / "x.png")
    with pytest.raises(CapsellaError, match=text):
        read_upload(tmp_path / "x.png", "x.png", grey)


def test_a_network_of_stereo_pairs_takes_no_files(tmp_path):
    stereo = model("hinton2018_matrix_capsnet_small", channels=2)
    with pytest.raises(CapsellaError, match="takes images of 2 channels"):
        read_upload(saved(tmp_path / "a.png", random(9, 9)), "a.png", stereo)


def as_url(image):
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def test_a_drawing_is_brought_to_the_networks_size(grey):
    canvas = np.zeros((224, 224, 4), np.uint8)
    canvas[..., 3] = 255
    canvas[:, 100:130, :3] = 255
    image = read_drawing(as_url(Image.fromarray(canvas)), grey)
    assert image.shape == (1, SIZE, SIZE)
    assert image[0, :, 8].min() > 0.9
    assert image[0, :, 0].max() == 0


@pytest.mark.parametrize("url", ["", "javascript:alert(1)", "data:image/png;base64,####", "data:image/png;base64,AAAA"])
def test_what_is_no_drawing(url, grey):
    with pytest.raises(CapsellaError, match="drawing: must come from the page's own canvas"):
        read_drawing(url, grey)


def test_an_empty_or_huge_canvas_or_a_network_of_colour(grey, colour):
    with pytest.raises(CapsellaError, match="the canvas is empty"):
        read_drawing(as_url(Image.new("L", (224, 224))), grey)
    with pytest.raises(CapsellaError, match="the page's own canvas"):
        read_drawing(as_url(Image.new("1", (2000, 2000), 1)), grey)
    with pytest.raises(CapsellaError, match="this one takes colour"):
        read_drawing(as_url(Image.new("L", (224, 224), 255)), colour)
