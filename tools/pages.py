"""`make pages`: train four small networks, and write the pages of docs/pages/ about them.

Each training takes some minutes on two quiet cores. digits.html is committed.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "pages"
_SMALL = ("--model-kwargs", "reconstruction=True", "decoder_width=256", "--size", "32")
# The recipe of each page's network, and its changes: small images and decoders make small pages.
TRAININGS: dict[str, tuple[str, ...]] = {
    "digits": ("demo", "--model-kwargs", "decoder_width=512"),
    "toys": (
        "images-efficient", *_SMALL, "--data", "toys", "--per-class", "600",
        "--validation-per-class", "60", "--no-flip", "--shift", "2", "--epochs", "40",
    ),
    "draw": (
        "images-efficient", *_SMALL, "--data", "mnist", "--size", "28", "--per-class", "800",
        "--no-flip", "--rotation", "15", "--shift", "3", "--stretch", "0.2",
        "--epochs", "12",
    ),
    "cells": ("images-efficient", *_SMALL, "--data", "pbc", "--channels", "3", "--epochs", "20"),
}  # fmt: skip
IMAGES = {"digits": 12, "toys": 10, "draw": 10, "cells": 8}  # test images on each page
WITH_NETWORK = ("draw",)  # pages that look at what a reader draws


def make_page(name: str) -> None:
    """Train the network of a page unless it is there, and write the page."""
    run = RUNS / name
    if not (run / "result.json").exists():
        _capsella("train", *TRAININGS[name], "--out", str(run))
    page, network = str(ROOT / "docs" / "pages" / f"{name}.html"), ["--network"] if name in WITH_NETWORK else []
    _capsella("share", str(run), "--out", page, "--images", str(IMAGES[name]), *network)


def _capsella(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "capsella", *words], check=True)


if __name__ == "__main__":
    for page in sys.argv[1:] or TRAININGS:
        make_page(page)
