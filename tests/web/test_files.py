"""The page in headless Chromium, with images of one's own."""

import numpy as np
import pytest
from PIL import Image

from capsella.web.images import encode_images
from capsella.web.uploads import read_upload
from tests.browser import CHROMIUM, until, violations

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")]


def test_the_network_looks_at_a_file_as_pytorch_does_and_at_a_drawing(tab, shared_network, small_run, tmp_path):
    page = tab(path=shared_network.path)
    page.locator(".more summary").click()
    image = np.random.default_rng(0).integers(0, 256, (40, 51, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "cell.png")
    page.set_input_files("input[type=file]", tmp_path / "cell.png")
    until(page, "document.querySelector('.about').innerText.startsWith('cell.png.')")
    assert "cell.png has 51×40 pixels: the middle was cut out and resized" in page.locator(".news").inner_text()
    pixels_, _ = read_upload((tmp_path / "cell.png").read_bytes(), "cell.png", small_run.model)
    activations, _ = encode_images(small_run.model, pixels_.unsqueeze(0).float() / 255)
    found = [float(text) for text in page.locator(".bars .number").all_inner_texts()]
    np.testing.assert_allclose(found, activations[0].numpy(), atol=0.02)  # they are said to 0.01
    page.locator(".changed").scroll_into_view_if_needed()
    until(page, "document.querySelector('.said').innerText.includes('the input unchanged: how sure')")
    assert "cannot show the routing" in page.locator(".routing .lead").inner_text()
    assert not page.locator(".routing canvas").first.is_visible()
    page.locator("canvas.sketch").click()
    until(page, "document.querySelector('.about').innerText.startsWith('Your drawing.')")
    (tmp_path / "bad.png").write_bytes(b"no image")
    page.set_input_files("input[type=file]", tmp_path / "bad.png")
    until(page, "document.querySelector('.news').innerText.startsWith('bad.png: is damaged, or no image')")
    assert violations(page) == []
    page.locator(".strip button").first.click()
    assert page.locator(".routing canvas").first.is_visible()
