"""Headless Chromium for the tests of pages."""

import shutil
from contextlib import contextmanager

import numpy as np
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip
SLOW = 60_000  # milliseconds; other tests share the processor
SIZES = [(1440, 900), (1024, 768), (390, 844)]
DIAL = ".dials [role=slider]"


@contextmanager
def launched():
    """Open a browser for a block."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def is_complaint(said):
    """A line of the console; that a server refused something with a sentence is none."""
    return said.type in ("error", "warning") and "responded with a status of 400" not in said.text


@contextmanager
def opener(browser, own):
    """A function that opens a page; at the end no tab may have seen an error, or asked for anything but what is `own`.

    own: with what addresses may begin.
    """
    complaints, asked, contexts = [], set(), []

    def open_tab(url, size=SIZES[0], motion="reduce", script="", **options):
        viewport = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, reduced_motion=motion, accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.add_init_script(script)
        page.set_default_timeout(SLOW)
        page.on("console", lambda said: complaints.append(said.text) if is_complaint(said) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.add(request.url))
        page.goto(url)
        page.wait_for_selector("main[data-ready]")
        return page

    yield open_tab
    for context in contexts:
        context.close()
    assert complaints == [], complaints
    assert asked
    assert not [url for url in asked if not url.startswith((*own, "data:", "blob:"))]


def pixels(page, css=".drawing canvas"):
    """Return the values of a canvas."""
    code = """css => {
      const canvas = document.querySelector(css);
      return [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data];
    }"""
    return np.array(page.evaluate(code, css))


def until(page, code, *given):
    """Wait until JavaScript says so; the page forbids code from strings, with which Playwright's own wait works."""
    for _ in range(SLOW // 50):
        if page.evaluate(code, *given):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not within a minute: {code}")


def violations(page):
    """Return rule, severity and first element of each violation that axe finds."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    found = axe.Axe().run(page).response["violations"]
    return [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found]
