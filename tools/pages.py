"""`make pages`: train the networks of the showcase pages, and write the pages into docs/pages/, digits first.

Each training takes some minutes on two quiet cores. A page in PAGES is named on the command line to make it alone;
further words are flags for its trainings, e.g. `python -m tools.pages digits --epochs 2`. digits.html is committed.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from capsella.data import evenly
from capsella.report.reconstructions import share_nearest_own
from capsella.training.run import load_splits
from capsella.training.trained import open_runs
from capsella.web import SharedPage, share_runs

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "pages"


class Page(NamedTuple):
    """A showcase page.

    trainings: the recipe of each of its runs, with flags. images: test images inside: every class, and two mistakes.
    nearest: the least share of decoded test images that are nearer to their own input than to any other. network: the
    page looks at what a reader draws. training: a small network learns in the page.
    """

    trainings: dict[str, str]
    images: int
    nearest: float | None = None
    network: bool = False
    training: bool = False


_SMALL = "images-efficient --size 32 --model-kwargs reconstruction=True"
PAGES = {
    "digits": Page(
        {
            "digits": "demo --model-kwargs decoder_width=512 --epochs 40 --reconstruction-weight 0.5 --shift 0",
            "digits-em": "demo --model hinton2018_matrix_capsnet_small",
        },
        12,
        0.9,
        training=True,
    ),
    "draw": Page(
        {
            "draw": "images-efficient --data mnist --size 28 --per-class 800 --no-flip --rotation 15 --shift 3 "
            "--stretch 0.2 --epochs 20 --model-kwargs reconstruction=True decoder_width=512"
        },
        12,
        0.4,
        True,
    ),
    "toys": Page(
        {
            "toys": f"{_SMALL} decoder_width=1024 --data toys --per-class 600 --validation-per-class 60 --no-flip "
            "--shift 2 --epochs 60"
        },
        10,
        0.6,
    ),
    # A dense decoder draws a grey spot for a cell: the page shows how parts become a cell instead.
    "cells": Page({"cells": "images-efficient --data pbc-subset --channels 3 --size 32 --epochs 20"}, 8),
}


def make_page(name: str, flags: list[str]) -> SharedPage:
    """Train the networks of a page unless they are there, write the page, and print how well it draws."""
    page = PAGES[name]
    for run, words in page.trainings.items():
        if not (RUNS / run / "result.json").exists():
            command = [sys.executable, "-m", "capsella", "train", *words.split(), *flags, "--out", str(RUNS / run)]
            subprocess.run(command, check=True)
    runs = list(open_runs([RUNS / run for run in page.trainings]).values())
    out = ROOT / "docs" / "pages" / f"{name}.html"
    shared = share_runs(runs, out, images=page.images, network=page.network, training=page.training)
    print(f"{out}: {shared.megabytes:.1f} MB")
    if page.nearest is not None:
        test = load_splits(runs[0]).test
        some = test.take(evenly(len(test), 500))
        share = share_nearest_own(runs[0].model, some.images, some.labels)
        print(
            f"{name}: {100 * share:.0f} % of drawings are nearest to their own input; {100 * page.nearest:.0f} wanted"
        )
    return shared


if __name__ == "__main__":
    words = sys.argv[1:]
    names = [word for word in words if word in PAGES] or list(PAGES)
    for name in names:
        make_page(name, [word for word in words if word not in PAGES])
