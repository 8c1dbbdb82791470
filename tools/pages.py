"""`make pages`: train the networks of the showcase pages, and write the pages into docs/pages/, digits first.

Each training takes some minutes on two quiet cores. A page in PAGES is named on the command line to make it alone;
further words are flags for its trainings, e.g. `python -m tools.pages digits --epochs 2`. The last page, `comparison`,
is the report of `capsella compare` on 1,000 blood cells (half an hour). digits.html and comparison.html are committed.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from capsella.data import evenly
from capsella.data.download import data_root
from capsella.report.reconstructions import share_nearest_own
from capsella.training.run import load_splits
from capsella.training.trained import open_runs
from capsella.web import SharedPage, share_runs

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "pages"
COMPARISON = "comparison"


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
            "--stretch 0.2 --reconstruction-weight 0.1 --epochs 20 --model-kwargs reconstruction=True decoder_width=512"
        },
        12,
        0.4,
        True,
    ),
    "toys": Page(
        {
            "toys": f"{_SMALL} decoder_width=1024 --data toys --per-class 600 --validation-per-class 60 --no-flip "
            "--shift 0 --reconstruction-weight 0.02 --epochs 60"
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


def write_cells(folder: Path, images: int = 1000, least: int = 20) -> None:
    """Write training images of `pbc` into a folder per class, in the proportions of its classes."""
    arrays, random = np.load(data_root() / "wbc/pbc_full_128.npz"), np.random.default_rng(0)
    files, offsets = arrays["image"], arrays["image_offset"]
    training = np.flatnonzero(arrays["split"] == 0)
    labels = arrays["label"][training]
    counts = np.bincount(labels)
    for label, wanted in enumerate(np.maximum(least, np.round(images * counts / counts.sum())).astype(int)):
        own = folder / str(arrays["classes"][label])
        own.mkdir(parents=True, exist_ok=True)
        for row in training[random.permutation(np.flatnonzero(labels == label))[:wanted]]:
            path = own / Path(str(arrays["name"][row])).with_suffix(".jpg").name
            path.write_bytes(files[offsets[row] : offsets[row + 1]].tobytes())


def make_comparison(flags: list[str]) -> None:
    """Compare networks on blood cells, unless that is done, and take the report as a page."""
    cells, out = RUNS / "eight-classes", RUNS / "compare-eight-classes"
    write_cells(cells)
    words = ["compare", str(cells.relative_to(ROOT)), *flags, "--out", str(out.relative_to(ROOT))]
    subprocess.run([sys.executable, "-m", "capsella", *words], check=True, cwd=ROOT)
    shutil.copyfile(out / "report.html", ROOT / "docs" / "pages" / f"{COMPARISON}.html")


if __name__ == "__main__":
    words = sys.argv[1:]
    every = [*PAGES, COMPARISON]
    flags = [word for word in words if word not in every]
    for name in [word for word in words if word in every] or every:
        if name == COMPARISON:
            make_comparison(flags)
        else:
            make_page(name, flags)
