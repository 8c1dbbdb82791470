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
MOST_LATENCY = 16  # milliseconds from a dial's turn to the picture, median: the bar


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
    assert re.search(r"Length 0\.\d\d → [01]\.\d\d: the decoder’s side.*does not look at this drawing again", said)
    page.get_by_role("button", name="All dials back").click()
    np.testing.assert_array_equal(pixels(page), start)
    assert page.locator(DIAL).first.get_attribute("aria-valuenow") == "0"
    assert page.locator(f"{DIAL} .fill").first.evaluate("fill => fill.getBoundingClientRect().width") == 0


def test_five_tabs_reach_every_dial_and_arrows_do_the_rest(tab):
    page = tab()
    reached = []
    for _ in range(5):
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


def test_a_typed_number_turns_and_one_out_of_range_is_refused(tab):
    page = tab()
    page.locator(DIAL).first.focus()
    page.keyboard.press("Enter")
    page.keyboard.type("0,1")
    page.keyboard.press("Enter")
    assert float(page.locator(DIAL).first.get_attribute("aria-valuenow")) == 0.1
    start = pixels(page)
    page.keyboard.press("Enter")
    page.keyboard.type("3")
    page.keyboard.press("Enter")
    assert "goes from −0.25 to 0.25; 3.00 is outside, and nothing was changed" in page.locator(".refusal").inner_text()
    assert page.locator(".dial input").first.input_value() == "+0.100"
    np.testing.assert_array_equal(pixels(page), start)


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


def test_silent_capsules_and_unsure_images_are_called_so(tab):
    page = tab()
    unsure, silent = set(), set()
    for image in range(12):
        page.locator(".strip button").nth(image).click()
        active = [float(text) for text in page.locator(".bars .number").all_inner_texts()]
        assert ("No capsule is sure" in page.locator(".about").inner_text()) == (max(active) < 0.5)
        page.locator(".bars button").nth(active.index(min(active))).click()
        assert ("is silent" in page.locator(".silent").inner_text()) == (min(active) < 0.1)
        assert ("silent" in page.locator(".drawing figcaption").inner_text()) == (min(active) < 0.1)
        unsure.add(max(active) < 0.5)
        silent.add(min(active) < 0.1)
    assert unsure == silent == {True, False}


def test_the_input_is_changed_and_routing_is_stepped_through(tab):
    page = tab()
    before = pixels(page, ".changed canvas")
    page.get_by_role("slider", name="Amount").focus()
    page.keyboard.press("ArrowRight")
    assert "turned by +10°" in page.locator(".said").inner_text()
    assert np.abs(pixels(page, ".changed canvas") - before).max() > 0
    page.get_by_role("radio", name="Scale").click()
    assert "unchanged" in page.locator(".said").inner_text()
    assert page.locator(".lead").inner_text().startswith("Routing decided")
    page.get_by_role("slider", name="Iteration").focus()
    page.keyboard.press("Home")
    assert "iteration 1" in page.locator(".routing figcaption").first.inner_text()
    assert page.locator(".dots circle").count() > 10


def test_a_part_that_is_pointed_at_is_framed_and_its_goals_are_named(tab):
    page = tab()
    page.locator(".over canvas").scroll_into_view_if_needed()
    assert page.locator(".field").is_hidden()
    box = page.locator(".over canvas").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    frame = page.locator(".field").bounding_box()
    assert frame["x"] == pytest.approx(box["x"], abs=1)
    said = page.locator(".part").inner_text()
    assert re.fullmatch(r"All 32 parts at row 1, column 1: \d+×\d+ pixels, .*in iteration 3:", said)
    assert page.locator(".goals li").count() == 4
    shares = [float(one.get_attribute("data-share")) for one in page.locator(".goals li").all()]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1.01
    marked = page.locator(".dots circle.on").count()
    assert 0 < marked <= 32
    page.mouse.move(1, 1)
    assert page.locator(".field").is_hidden()
    page.locator(".dots circle").nth(2).dispatch_event("pointerover", {"bubbles": True})
    assert page.locator(".dots circle.on").count() == 1
    assert page.locator(".part").inner_text().startswith("The part of type ")


def test_the_strongest_dial_plays_once(tab):
    watch = """window.seen = [];
      new MutationObserver((changes) => changes.forEach(({ target }) => {
        if (target.matches?.(".dials [role=slider]")) seen.push(Number(target.getAttribute("aria-valuenow")));
      })).observe(document, { subtree: true, attributes: true, attributeFilter: ["aria-valuenow"] });"""
    page = tab(motion="no-preference", script=watch)
    until(page, "Math.max(...seen) > 0.1 && Math.min(...seen) < -0.1 && seen.at(-1) === 0")
    page.wait_for_timeout(500)
    assert page.evaluate("seen.at(-1)") == 0


def test_two_images_side_by_side(tab):
    page = tab()
    page.get_by_role("button", name="Put a second image beside it").click()
    assert page.locator(".pane").count() == 2
    left = pixels(page)
    second = page.locator(".pane").nth(1)
    second.locator(DIAL).first.focus()
    page.keyboard.press("End")
    np.testing.assert_array_equal(pixels(page), left)
    until(page, "location.hash.includes('|')")
    assert tab(page.evaluate("location.hash")).locator(".pane").count() == 2
    page.get_by_role("button", name="One view again").click()
    assert page.locator(".pane").count() == 1


def test_two_runs_of_which_one_has_no_dials(tab, shared_pair):
    page = tab(path=shared_pair.path)
    page.get_by_role("button", name="Put the other run beside it").click()
    panes = page.locator(".pane")
    assert panes.nth(0).locator(DIAL).count() == 16
    assert panes.nth(1).locator(DIAL).count() == 0
    assert "trained without a decoder" in panes.nth(1).inner_text()
    page.get_by_role("radio", name="plain").first.click()
    assert panes.nth(0).locator(DIAL).count() == 0
    assert panes.nth(0).locator(".said").inner_text() != ""
    page.get_by_role("radio", name="plain").first.press("ArrowRight")
    until(page, "document.querySelectorAll('.pane')[0].querySelectorAll('[role=slider]').length >= 16")
    assert page.evaluate("document.activeElement.getAttribute('aria-checked')") == "true"  # and not <body>


def test_the_page_compares_itself_with_pytorch(tab):
    page = tab()
    until(page, "document.querySelector('footer').innerText.includes('grey levels')")
    worst = re.search(r"further than (\d+\.\d) grey levels", page.locator("footer").inner_text())
    assert float(worst[1]) <= 0.7
