"""The page in headless Chromium, opened from the disk: dials, keys, fingers, themes, sizes, and what it never does."""

import re

import numpy as np
import pytest

from tests.browser import CHROMIUM, DIAL, SIZES, pixels, until, violations

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
    assert re.search(r"Length 0\.\d\d → [01]\.\d\d, from the dials alone.*does not look at this drawing again", said)
    page.get_by_role("button", name="Reset all dials").click()
    np.testing.assert_array_equal(pixels(page), start)
    assert page.locator(DIAL).first.get_attribute("aria-valuenow") == "0"
    assert page.locator(f"{DIAL} .fill").first.evaluate("fill => fill.getBoundingClientRect().width") == 0


def test_a_few_tabs_reach_every_dial_and_arrows_do_the_rest(tab):
    page = tab()
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.closest('.dial')?.dataset.dial ?? null"))
    assert any(reached)
    page.evaluate("document.activeElement.blur()")
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


def test_on_a_phone_a_vertical_swipe_scrolls_and_the_pictures_stay(tab):
    page = tab(size=SIZES[2], has_touch=True, is_mobile=True)
    dial = page.locator(DIAL).nth(1)
    swipe(page, dial.bounding_box(), 6, -260)
    assert page.evaluate("scrollY") > 100
    assert {slider.get_attribute("aria-valuenow") for slider in page.locator(DIAL).all()} == {"0"}
    # In the middle of the screen: a page that scrolled on may have left it under the pictures.
    page.locator(DIAL).nth(3).evaluate("dial => dial.scrollIntoView({block: 'center', behavior: 'instant'})")
    swipe(page, page.locator(DIAL).nth(3).bounding_box(), 60, 4)
    assert float(page.locator(DIAL).nth(3).get_attribute("aria-valuenow")) > 0
    page.locator(DIAL).nth(8).scroll_into_view_if_needed()
    for css in (".input", ".drawing", ".difference"):
        box = page.locator(css).first.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] < 844 / 2


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
@pytest.mark.parametrize("hash_", ["", "#class=1&dials=1:0.2&change=turn&stop=7&iteration=1"])
def test_axe_finds_nothing(tab, scheme, hash_):
    page = tab(hash_, color_scheme=scheme)
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


def test_the_page_compares_itself_with_pytorch(tab):
    page = tab()
    until(page, "document.querySelector('footer').innerText.includes('grey levels')")
    worst = re.search(r"further than (\d+\.\d) grey levels", page.locator("footer").inner_text())
    assert float(worst[1]) <= 0.7


def test_the_tour_shows_five_places_and_ends(tab):
    page = tab()
    page.get_by_role("button", name="Take the tour").click()
    for step in range(1, 6):
        assert page.locator(".tour p").inner_text().startswith(f"{step} of 5. ")
        assert page.locator(".toured").count() == 1
        page.locator(".tour button").nth(1).click()
    assert page.locator(".tour").is_hidden()
    assert page.locator(".toured").count() == 0


def test_a_word_is_explained_by_key_and_pointer(tab):
    page = tab()
    word = page.get_by_role("button", name="capsule", exact=True)
    word.focus()
    page.keyboard.press("Enter")
    assert page.locator(".meaning:popover-open").count() == 1
    page.keyboard.press("Escape")
    assert page.locator(".meaning:popover-open").count() == 0
    word.hover()
    assert "its length is how sure" in page.locator(".meaning:popover-open").inner_text()
