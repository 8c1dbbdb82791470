"""`make pages`: train four small networks, and write the pages of docs/pages/ about them.

Each training takes some minutes on two quiet cores. Its result is kept as results/pages/NAME.json.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "pages"
_SMALL = ("--model.reconstruction", "--model.decoder-width", "256", "--data.size", "32")
TRAININGS: dict[str, tuple[str, ...]] = {
    "digits": ("demo", "--model.decoder-width", "512"),
    "toys": (
        "images-efficient", *_SMALL, "--data.name", "toys", "--data.per-class", "600",
        "--data.validation-per-class", "60", "--augment.no-flip", "--augment.shift", "2", "--epochs", "40",
    ),
    "draw": (
        "images-efficient", *_SMALL, "--data.name", "mnist", "--data.size", "28", "--data.per-class", "800",
        "--augment.no-flip", "--augment.rotation", "15", "--augment.shift", "3", "--augment.stretch", "0.2",
        "--epochs", "12",
    ),
    "cells": ("images-efficient", *_SMALL, "--data.name", "pbc", "--data.channels", "3", "--epochs", "20"),
}  # fmt: skip
"""The recipe of each page's network, and what differs from it: small images and decoders make small pages."""
IMAGES = {"digits": 12, "toys": 10, "draw": 10, "cells": 8}
"""Test images on each page."""
WITH_NETWORK = ("draw",)
"""Pages that look at what a reader draws."""


def make_page(name: str) -> None:
    """Train the network of a page unless it is there, and write the page and its result."""
    run = RUNS / name
    if not (run / "result.json").exists():
        _capsella("train", *TRAININGS[name], "--out", str(run))
    page, network = str(ROOT / "docs" / "pages" / f"{name}.html"), ["--network"] if name in WITH_NETWORK else []
    _capsella("share", str(run), "--out", page, "--images", str(IMAGES[name]), *network)
    kept = ROOT / "results" / "pages" / f"{name}.json"
    kept.parent.mkdir(exist_ok=True)
    shutil.copyfile(run / "result.json", kept)


def _capsella(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "capsella", *words], check=True)


if __name__ == "__main__":
    for page in sys.argv[1:] or TRAININGS:
        make_page(page)
