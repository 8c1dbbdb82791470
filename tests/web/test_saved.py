"""The page in headless Chromium: pictures and films that are saved from it."""

import numpy as np
import pytest
from PIL import Image

from tests.browser import CHROMIUM, DIAL, pixels

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")]


def saved(page, button, path):
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    download.value.save_as(path)
    return Image.open(path)


@pytest.mark.parametrize(
    ("button", "figures"),
    [("Save the picture (PNG)", 5), ("Save these pictures (PNG)", 6), ("Save this step (PNG)", 3)],
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_is_saved(tab, tmp_path, button, figures, scheme):
    page = tab(color_scheme=scheme)
    with saved(page, button, tmp_path / "picture.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 300 * figures
        pixels_ = np.asarray(picture.convert("RGB"), float)
    assert (pixels_[0, 0].mean() < 80) == (scheme == "dark")
    for figure in range(figures):  # none is empty
        part = pixels_[: 20 + 320, figure * pixels_.shape[1] // figures :][:, : pixels_.shape[1] // figures]
        assert part.std() > 4, figure


def test_the_sweep_of_a_dial_is_saved(tab, tmp_path):
    page = tab()
    page.locator(DIAL).nth(1).focus()
    page.keyboard.press("PageUp")
    start = pixels(page)
    with saved(page, "Save the sweep", tmp_path / "sweep.gif") as film:
        assert (film.format, film.n_frames, film.info["duration"]) == ("GIF", 24, 80)
        frames = []
        for frame in (6, 18):  # the ends
            film.seek(frame)
            frames.append(np.asarray(film.convert("L"), float)[20:220, 680:880])  # the drawing, after three figures
        assert np.abs(frames[0] - frames[1]).mean() > 1
    np.testing.assert_array_equal(pixels(page), start)
    assert "Saved" in page.locator(".told").first.inner_text()
