"""`python -m tools.screenshot PAGE PICTURE.png`: the first screen of a page at 1440×900.

So were made in docs/pictures: share-1440.png from docs/pages/digits.html, explore.png from the address that
`capsella explore` prints, and compare.png from docs/pages/comparison.html.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright


def main(page: str, picture: Path) -> None:
    """Open a file or an address in Chromium, and write its first screen."""
    address = page if "://" in page else Path(page).resolve().as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
        opened.goto(address)
        opened.wait_for_timeout(1500)
        opened.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.screenshot", description=__doc__)
    parser.add_argument("page")
    parser.add_argument("picture", type=Path)
    main(**vars(parser.parse_args()))
