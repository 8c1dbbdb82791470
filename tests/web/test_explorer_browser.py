"""The served page in headless Chromium: what needs a server, and what must not come back."""

import io
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import capsella
from tests.browser import CHROMIUM, launched, opener, pixels, until, violations

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")]


@pytest.fixture(scope="module")
def chromium():
    with launched() as browser:
        yield browser


@pytest.fixture
def tab(served, chromium):
    with opener(chromium, (served.url,)) as open_tab:

        def open_server(hash_="", **options):
            return open_tab(f"{served.url}/{hash_}", **options)

        yield open_server


def says(page, text, css=".about"):
    until(page, "([css, text]) => document.querySelector(css).innerText.includes(text)", [css, text])


def more(page):
    page.get_by_text("Another image").first.click()
    return page


def upload(page, name, content):
    page.locator("input[type=file]").first.set_input_files({"name": name, "mimeType": "image/png", "buffer": content})


def png(*shape):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


def test_any_test_image_by_number_and_one_out_of_range_is_refused(tab):
    page = more(tab())
    number = page.get_by_label("Test image, 0 to 29")
    number.fill("17")
    page.keyboard.press("Enter")
    says(page, "Test image 17 is")
    until(page, "location.hash.endsWith('image=17')")
    shown = pixels(page, ".input canvas")
    number.fill("30")
    page.keyboard.press("Enter")
    says(page, "Test images have numbers from 0 to 29; “30” is none of them", ".news")
    np.testing.assert_array_equal(pixels(page, ".input canvas"), shown)
    assert "Test image 17 is" in page.locator(".about").inner_text()
    assert page.locator(".strip button").last.get_attribute("aria-checked") == "true"


def test_a_click_draws_a_dot_and_a_drawing_is_looked_at(tab):
    page = more(tab())
    canvas = page.locator("canvas.sketch")
    box = canvas.bounding_box()
    page.mouse.click(box["x"] + 40, box["y"] + 70)
    dot = pixels(page, "canvas.sketch").reshape(224, 224, 4)[..., 0]
    assert dot[70, 40] == 255
    assert 100 < (dot > 0).sum() < 500
    says(page, "Your drawing. ")
    assert pixels(page, ".input canvas").reshape(17, 17, 4)[5, 3, 0] > 100
    page.get_by_role("button", name="Clear").click()
    assert pixels(page, "canvas.sketch").reshape(-1, 4)[:, 0].max() == 0


def test_a_comparison_follows_what_is_chosen(tab):
    page = tab()
    page.get_by_role("button", name="Put the other run beside it").click()
    panes = page.locator(".pane")
    for choice in (5, 2):
        panes.nth(0).locator(".strip button").nth(choice).click()
        called = panes.nth(0).locator(".strip button").nth(choice).get_attribute("title").split(":")[0]
        until(page, "called => document.querySelectorAll('.about')[1].innerText.startsWith(called)", called)
    page.get_by_text("Another image").first.click()
    upload(page, "photo.png", png(17, 17))
    until(page, "[...document.querySelectorAll('.about')].every(one => one.innerText.startsWith('photo.png'))")
    panes.nth(0).locator(".bars button").nth(1).click()
    until(page, "document.querySelectorAll('.arrow figcaption')[1].innerText === 'capsule of <b>&amp;</b>'")
    np.testing.assert_array_equal(
        pixels(page, ".pane .input canvas"), pixels(page, ".holder:nth-child(2) .input canvas")
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(tab, scheme):
    page = tab(color_scheme=scheme)
    page.get_by_role("button", name="Put the other run beside it").click()
    more(page)
    page.get_by_label("Test image, 0 to 29").first.fill("x")
    page.keyboard.press("Enter")
    page.locator(".changed").first.scroll_into_view_if_needed()
    says(page, "the input unchanged", ".said")
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert violations(page) == []


def test_the_command_serves_and_leaves_nothing_behind(trained_run, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "capsella", "explore", str(trained_run("capsnet")), "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(Path(capsella.__file__).parents[1]), "TMPDIR": str(tmp_path)}
    environment["PYTHONUNBUFFERED"] = "1"
    process = subprocess.Popen([*words, "--no-browser"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    try:
        for line in process.stdout:
            if b"http://127.0.0.1" in line:
                break
        for path, body, expected in (("/", None, "<title>"), ("/api/runs/0/files?name=a.png", png(30, 30), "a.png")):
            assert expected in urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body).read().decode()
    finally:
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=60)[0]
    assert b"Traceback" not in output
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
