"""The page in headless Chromium, from the disk and served: dials, keys, fingers, themes, sizes, files, pictures."""

import os
import re
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
from capsella.web import share_runs
from capsella.web.images import encode_images
from capsella.web.uploads import read_upload
from tests.browser import CHROMIUM, DIAL, SIZES, pixels, until, violations

from .conftest import png

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")]

# A page that a finger threw scrolls on: it rests when ten frames have left it where it was.
AT_REST = """async () => {
  for (let still = 0, last = NaN; still < 10; still = scrollY === last ? still + 1 : 0, last = scrollY)
    await new Promise(requestAnimationFrame);
}"""


def test_a_dial_changes_the_drawing_the_arrow_and_the_length_and_reset_brings_them_back(tab):
    page = tab()
    assert page.locator(DIAL).count() == 16
    assert page.locator("button canvas").first.locator("..").evaluate("button => button.textContent") in ("", "✗")
    start, arrow = pixels(page), page.locator(".arrow .turned").get_attribute("d")
    page.locator(DIAL).first.focus()
    page.keyboard.press("End")
    assert np.abs(pixels(page) - start).max() > 0
    assert page.locator(".arrow .turned").get_attribute("d") != arrow
    assert page.locator(".arrow .found").get_attribute("d") == arrow
    said = page.locator(".lengths").inner_text()
    assert re.search(r"Length 0\.\d\d → [01]\.\d\d: a dial changes.*does not look at this drawing again", said)
    page.get_by_role("button", name="Reset all dials").click()
    np.testing.assert_array_equal(pixels(page), start)
    page.locator(".arrow svg").click(position={"x": 20, "y": 40})
    assert np.abs(pixels(page) - start).max() > 0
    page.get_by_role("button", name="Reset all dials").click()
    assert page.locator(DIAL).first.get_attribute("aria-valuenow") == "0"
    assert page.locator(f"{DIAL} .fill").first.evaluate("fill => fill.getBoundingClientRect().width") == 0


def test_a_few_tabs_reach_every_dial_and_arrows_do_the_rest(tab):
    page = tab()
    for _ in range(9):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.dial')"):
            break
    else:
        raise AssertionError("nine tabs reach no dial")
    order = page.locator(".dials").first.locator(".dial").evaluate_all("dials => dials.map(dial => dial.dataset.dial)")
    page.locator(DIAL).first.focus()
    walked = []
    for _ in order:
        walked.append(page.evaluate("document.activeElement.closest('.dial').dataset.dial"))
        page.keyboard.press("ArrowDown")
    assert walked == order


def swipe(page, box, dx, dy):
    """A finger from the middle of a box, in steps, as a touch screen sends it."""
    session = page.context.new_cdp_session(page)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for step in range(1, 11):
        at = {"x": x + dx * step / 10, "y": y + dy * step / 10}
        session.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [at]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.evaluate(AT_REST)


def test_on_a_phone_a_vertical_swipe_scrolls_and_a_sideways_one_turns(tab):
    page = tab(size=SIZES[2], has_touch=True, is_mobile=True)
    dial = page.locator(DIAL).nth(1)
    swipe(page, dial.bounding_box(), 6, -260)
    assert page.evaluate("scrollY") > 100
    assert {slider.get_attribute("aria-valuenow") for slider in page.locator(DIAL).all()} == {"0"}
    # In the middle of the screen: a page that scrolled on may have left it under the pictures.
    page.locator(DIAL).nth(3).evaluate("dial => dial.scrollIntoView({block: 'center', behavior: 'instant'})")
    swipe(page, page.locator(DIAL).nth(3).bounding_box(), 60, 4)
    assert float(page.locator(DIAL).nth(3).get_attribute("aria-valuenow")) > 0


@pytest.mark.parametrize("size", SIZES)
def test_nothing_hangs_over_and_pictures_stay_in_sight(tab, size):
    page = tab(size=size)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.locator(DIAL).last.scroll_into_view_if_needed()
    for css in (".input", ".drawing", ".difference"):
        box = page.locator(css).first.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= size[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(tab, scheme):
    page = tab("#class=1&dials=1:0.2&change=turn&stop=7&iteration=1", color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert violations(page) == []


def test_a_view_is_in_the_address(tab, shared):
    page = tab()
    page.locator(".strip button").nth(3).click()
    page.locator(".bars button").nth(2).click()
    page.locator(DIAL).first.focus()
    page.keyboard.press("End")
    until(page, "location.hash.includes('dials=')")
    hash_ = page.evaluate("location.hash")
    assert re.fullmatch(r"#image=\d+&class=2&dials=\d+:0\.25", hash_)
    again = tab(hash_)
    np.testing.assert_array_equal(pixels(again), pixels(page))
    assert again.locator(".lengths").inner_text() == page.locator(".lengths").inner_text()
    assert len(shared.images["digits"]) == page.locator(".strip button").count()


def test_the_input_is_changed_and_routing_is_stepped_through(tab):
    page = tab()
    before = pixels(page, ".changed canvas")
    page.get_by_role("slider", name="Amount").focus()
    page.keyboard.press("ArrowRight")
    assert "turned by +10°" in page.locator(".said").inner_text()
    assert np.abs(pixels(page, ".changed canvas") - before).max() > 0
    page.get_by_role("radio", name="Scale").click()
    assert "unchanged" in page.locator(".said").inner_text()
    assert page.locator(".routing .lead").inner_text().startswith("Routing decided")
    page.get_by_role("slider", name="Iteration").focus()
    page.keyboard.press("Home")
    assert "iteration 1" in page.locator(".routing figcaption").first.inner_text()
    assert page.locator(".dots circle").count() > 10


def test_the_tour_shows_five_places_and_ends_and_words_are_explained(tab):
    page = tab()
    page.get_by_role("button", name="Take the tour").click()
    for step in range(1, 6):
        assert page.locator(".tour p").inner_text().startswith(f"{step} of 5. ")
        assert page.locator(".toured").count() == 1
        assert page.locator(".tour button:visible").count() == (2 if step == 5 else 3)
        page.locator(".tour button").nth(1).click()
    assert page.locator(".tour").is_hidden()
    assert page.locator(".toured").count() == 0
    word = page.get_by_role("button", name="capsule", exact=True)
    word.focus()
    page.keyboard.press("Enter")
    assert page.locator(".meaning:popover-open").count() == 1
    page.keyboard.press("Escape")
    assert page.locator(".meaning:popover-open").count() == 0
    word.hover()
    assert "its length is how sure" in page.locator(".meaning:popover-open").inner_text()


def test_a_network_learns_until_it_is_stopped(tab, tmp_path, run):
    page = tab(path=share_runs([run], tmp_path / "page.html", images=2, training=True).path)
    start = pixels(page, ".examples canvas + canvas")
    page.get_by_role("button", name="Train for 30 seconds").focus()
    page.keyboard.press("Enter")
    until(page, "/^[2-9] s: /.test(document.querySelector('.training .said').innerText)")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.training .said').innerText.startsWith('Stopped after ')")
    assert np.abs(pixels(page, ".examples canvas + canvas") - start).max() > 10
    assert page.locator(".training .first").first.get_attribute("d").count("L") >= 2
    assert violations(page) == []


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
    page.locator("canvas.sketch").click()  # leaves a dot
    until(page, "document.querySelector('.about').innerText.startsWith('Your drawing.')")
    assert 100 < (pixels(page, "canvas.sketch").reshape(-1, 4)[:, 0] > 0).sum() < 500
    page.get_by_role("button", name="Clear").click()
    assert pixels(page, "canvas.sketch").reshape(-1, 4)[:, 0].max() == 0
    (tmp_path / "bad.png").write_bytes(b"no image")
    page.set_input_files("input[type=file]", tmp_path / "bad.png")
    until(page, "document.querySelector('.news').innerText.startsWith('bad.png: is damaged, or no image')")
    assert violations(page) == []
    page.locator(".strip button").first.click()
    assert page.locator(".routing canvas").first.is_visible()


def saved(page, button, path):
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    download.value.save_as(path)
    return Image.open(path)


@pytest.mark.parametrize(
    ("button", "figures"),
    [("Save the picture (PNG)", 5), ("Save these pictures (PNG)", 6), ("Save this step (PNG)", 3)],
)
def test_a_picture_is_saved(tab, tmp_path, button, figures):
    page = tab(color_scheme="dark")
    with saved(page, button, tmp_path / "picture.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 300 * figures
        pixels_ = np.asarray(picture.convert("RGB"), float)
    assert pixels_[0, 0].mean() < 80
    for figure in range(figures):  # none is empty
        part = pixels_[: 20 + 320, figure * pixels_.shape[1] // figures :][:, : pixels_.shape[1] // figures]
        assert part.std() > 4, figure


def says(page, text, css=".about"):
    until(page, "([css, text]) => document.querySelector(css).innerText.includes(text)", [css, text])


def more(page):
    page.get_by_text("Another image").first.click()
    return page


def test_a_comparison_follows_what_is_chosen(served_tab):
    page = served_tab()
    page.get_by_role("button", name="Put the other run beside it").click()
    panes = page.locator(".pane")
    for choice in (5, 2):
        panes.nth(0).locator(".strip button").nth(choice).click()
        called = panes.nth(0).locator(".strip button").nth(choice).get_attribute("title").split(":")[0]
        until(page, "called => document.querySelectorAll('.about')[1].innerText.startsWith(called)", called)
    page.get_by_text("Another image").first.click()
    photo = {"name": "photo.png", "mimeType": "image/png", "buffer": png(17, 17)}
    page.locator("input[type=file]").first.set_input_files(photo)
    until(page, "[...document.querySelectorAll('.about')].every(one => one.innerText.startsWith('photo.png'))")
    panes.nth(0).locator(".bars button").nth(1).click()
    until(page, "document.querySelectorAll('.arrow figcaption')[1].innerText === 'capsule of <b>&amp;</b>'")
    np.testing.assert_array_equal(
        pixels(page, ".pane .input canvas"), pixels(page, ".holder:nth-child(2) .input canvas")
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_served_page(served_tab, scheme):
    page = served_tab(color_scheme=scheme)
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
