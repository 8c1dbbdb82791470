"""Every kind of report fits a phone and a sheet of paper and is short enough; axe finds nothing in it."""

import functools

import pytest

from capsella.cli import main
from tests.browser import CHROMIUM, launched, violations
from tests.experiments.compare.made import FLAGS, call
from tests.reproduce.made import registered

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")]

PHONE, DESK, SHEET = (390, 844), (1440, 900), (718, 1000)  # the last: A4 at 96 dots per inch, without its margins
TINY = ["--per-class", "2", "--validation", "0.02", "--test-per-class", "1", "--size", "17", "--batch-size", "20"]
# Elements that reach beyond the page, or hold more than they show.
TOO_WIDE = """() => {
  const page = document.documentElement.clientWidth;
  return [...document.querySelectorAll('body *')].filter((element) => {
    const { right, width } = element.getBoundingClientRect();
    return width > 0 && (right > page + 1 || element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 1
      && getComputedStyle(element).display !== 'inline');
  }).map((element) => element.outerHTML.slice(0, 120));
}"""


@pytest.fixture(scope="module")
def browser():
    with launched() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def reports(trained_run, image_folder, tmp_path_factory):
    """A function from the kind of a report to its page, made when it is asked for."""
    out = tmp_path_factory.mktemp("reports")

    @functools.cache
    def make(kind):
        if kind in ("capsnet", "em", "cnn"):
            return trained_run(kind) / "report.html"
        if kind == "compare":
            call(image_folder, *FLAGS, "--folds", "1", "--out", out / kind)
        elif kind == "search":
            words = ["--trials", "2", "--finalists", "1", "--seeds", "1", "--epochs", "2", "--tune", "learning_rate"]
            main(["search", "demo", *TINY, "--model", "he2016_resnet10", *words, "--out", str(out / kind)])
        else:
            with registered():
                main(["papers", "reproduce", "--budget", "small", "--seeds", "1", "--out", str(out / kind)])
        return out / kind / "report.html"

    return make


@pytest.mark.parametrize("kind", ["capsnet", "em", "cnn", "compare", "search", "papers"])
def test_nothing_is_wider_than_the_page(browser, reports, kind):
    path = reports(kind)
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": PHONE[0], "height": PHONE[1]}, color_scheme=scheme)
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
        assert page.evaluate(TOO_WIDE) == []
        assert violations(page) == []
        page.close()
    page = browser.new_page(viewport={"width": SHEET[0], "height": SHEET[1]})
    page.goto(path.as_uri())
    page.emulate_media(media="print")
    assert page.evaluate(TOO_WIDE) == []
    hidden = "[...document.querySelectorAll('details > :not(summary)')].filter(one => one.offsetHeight === 0).length"
    assert page.evaluate(hidden) == 0  # what is folded on the screen is printed
    page.close()


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_the_first_screen_of_a_comparison_has_the_decision_and_its_figure(browser, reports, size):
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.goto(reports("compare").as_uri())
    for css in (".decision .headline", ".top .chart img"):
        box = page.locator(css).first.bounding_box()
        assert box["y"] + box["height"] <= size[1]
    page.close()


@pytest.mark.parametrize("kind", ["capsnet", "em", "cnn"])
def test_a_run_is_read_in_a_few_screens(browser, reports, kind):
    page = browser.new_page(viewport={"width": DESK[0], "height": DESK[1]})
    page.goto(reports(kind).as_uri())
    assert page.evaluate("document.documentElement.scrollHeight") <= 4000
    for css in (".decision .headline", "#confusion", ".next code"):
        box = page.locator(css).first.bounding_box()
        assert box["y"] + box["height"] <= DESK[1]
    page.close()
