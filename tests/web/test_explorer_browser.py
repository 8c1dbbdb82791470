"""The served page in headless Chromium: what needs a server, and what must not come back."""

import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import capsella
from capsella.papers import get_recipe
from capsella.training import train
from tests.browser import CHROMIUM, DIAL, launched, opener, pixels, until, violations

from .conftest import Served

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")]


@pytest.fixture(scope="module")
def chromium():
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def distant(convolutional):
    """A server that draws itself."""
    with Served([convolutional]) as server:
        yield server


@pytest.fixture
def tab(served, distant, chromium):
    with opener(chromium, (served.url, distant.url)) as open_tab:

        def open_server(hash_="", server=served, **options):
            return open_tab(f"{server.url}/{hash_}", **options)

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


def test_good_and_bad_files(tab):
    page = more(tab())
    upload(page, "photo.png", png(50, 40, 3))
    says(page, "photo.png. ")
    says(page, "photo.png has 40×50 pixels: the middle was cut out and resized to the network's 17×17", ".news")
    shown = pixels(page, ".input canvas")
    upload(page, "bad.png", b"no image")
    says(page, "bad.png: is damaged, or no image", ".news")
    np.testing.assert_array_equal(pixels(page, ".input canvas"), shown)


def test_a_click_draws_a_dot_and_a_drawing_is_looked_at(tab):
    page = more(tab())
    canvas = page.locator("canvas.sketch")
    box = canvas.bounding_box()
    page.mouse.click(box["x"] + 40, box["y"] + 70)
    dot = pixels(page, "canvas.sketch").reshape(224, 224, 4)[..., 0]
    assert dot[140, 80] == 255
    assert 100 < (dot > 0).sum() < 500
    says(page, "Your drawing. ")
    assert pixels(page, ".input canvas").reshape(17, 17, 4)[10, 6, 0] > 100
    page.get_by_role("button", name="Clear").click()
    assert pixels(page, "canvas.sketch").reshape(-1, 4)[:, 0].max() == 0


def test_changed_inputs_are_shown_to_the_network_once_in_sight(tab):
    page = tab(size=(1440, 500))  # they are below it
    assert "looking at this image" in page.locator(".said").inner_text()
    page.locator(".changed").scroll_into_view_if_needed()
    says(page, "the input unchanged", ".said")
    page.get_by_role("slider", name="Amount").focus()
    page.keyboard.press("ArrowRight")
    assert "turned by +10°" in page.locator(".said").inner_text()
    page.locator(".strip button").nth(3).click()
    page.locator(".changed").scroll_into_view_if_needed()
    says(page, "turned by +10°: how sure", ".said")


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


def test_the_server_draws_where_the_page_cannot(tab, distant):
    page = tab(server=distant)
    until(page, "document.querySelector('.progress').innerText === ''")
    start = pixels(page)
    page.locator(DIAL).first.focus()
    page.keyboard.press("End")
    until(page, "document.querySelector('.drawing figcaption').innerText === 'drawing'")
    assert np.abs(pixels(page) - start).max() > 0
    page.get_by_role("button", name="All dials back").click()
    np.testing.assert_array_equal(pixels(page), start)
    before = page.locator(".bars button[aria-checked=true]").inner_text()
    page.locator(".bars button[aria-checked=false]").first.click()
    assert page.locator(".bars button[aria-checked=true]").inner_text() != before
    until(page, "document.querySelector('.drawing figcaption').innerText.startsWith('drawing')")
    until(page, "!document.querySelector('.drawing').classList.contains('late')")
    assert np.abs(pixels(page) - start).max() > 0


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


def test_a_server_that_is_gone_is_said(chromium, capsnet):
    page = chromium.new_page()
    with Served([capsnet]) as server:
        page.goto(server.url)
        page.wait_for_selector("main[data-ready]")
    more(page)
    page.get_by_label("Test image, 0 to 29").fill("17")
    page.keyboard.press("Enter")
    says(page, "The server does not answer. Has capsella explore ended?", ".news")
    page.close()


class Process:
    """`capsella explore` as users start it, with an empty folder to work in and another to call home."""

    def __init__(self, place, *words):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folders = [place / name for name in ("work", "home", "tmp")]
        for folder in self.folders:
            folder.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "capsella", "explore", *map(str, words), "--port", str(self.port), "--no-browser"],
            cwd=self.folders[0],
            env={
                **os.environ, "PYTHONPATH": str(Path(capsella.__file__).parents[1]), "HOME": str(self.folders[1]),
                "TMPDIR": str(self.folders[2]), "MPLCONFIGDIR": str(place / "matplotlib"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    def ask(self, path, body=None):
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", body, timeout=30).read().decode()

    def wait(self):
        for _ in range(700):  # a busy machine takes minutes to import PyTorch
            assert self.process.poll() is None, self.process.stdout.read()
            try:
                return self.ask("/")
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise AssertionError("the server does not answer")


def test_the_command_serves_and_leaves_nothing_behind(tmp_path):
    recipe = get_recipe("demo")
    recipe = replace(recipe, data=replace(recipe.data, size=17, per_class=4, test_per_class=6), epochs=1)
    recipe = recipe.with_model(primary_types=4, decoder_width=16)
    train(recipe, tmp_path / "digits", name="digits", console=Console(quiet=True))
    server = Process(tmp_path, tmp_path / "digits")
    try:
        assert "<title>digits: inside a capsule network</title>" in server.wait()
        assert '"title":"a.png"' in server.ask("/api/runs/0/files?name=a.png", png(30, 30))
    finally:
        server.process.send_signal(signal.SIGTERM)
        output = server.process.communicate(timeout=60)[0]
    assert re.search(rf"explore digits at http://127\.0\.0\.1:{server.port}\n", output)
    assert "Traceback" not in output
    assert [str(path) for folder in server.folders for path in folder.rglob("*") if path.is_file()] == []
