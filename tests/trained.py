"""A folder of small images and tiny trained runs, made once per test run (also for all xdist workers) and copied."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from capsella.cli import main

SIZE = 17  # the smallest that CapsNet's kernels allow
CLASSES = ("columns", "rows", "rings")
PER_CLASS = 11  # 8 to train, 1 to validate, 2 to test
SHORT = ["--size", str(SIZE), "--epochs", "1", "--batch-size", "8", "--accelerator", "cpu", "--no-flip"]
# The command line of each run. CapsNet has all its layers and a tenth of its weights, which take the time.
RUNS = {
    "capsnet": ["images-capsnet", "--model-kwargs", "primary_types=4", "decoder_width=16"],
    "cnn": ["images-cnn"],
    "em": ["images-matrix-capsnet"],
}


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` fills the first time that any process of this test run asks for it."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    shared.mkdir(exist_ok=True)
    folder = shared / name
    with FileLock(shared / f"{name}.lock"):
        if not (shared / f"{name}.made").exists():
            make(folder)
            (shared / f"{name}.made").touch()
    return folder


def draw(kind: str, random: np.random.Generator) -> Image.Image:
    """Stripes or rings in noise."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    distance = {"columns": columns, "rows": rows, "rings": np.hypot(rows - 8, columns - 8)}[kind]
    pixels = 128 + 90 * np.sin(distance * 1.6 + random.uniform(0, 6)) + random.normal(0, 15, (SIZE, SIZE))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def draw_folder(folder: Path) -> None:
    """Write grey PNG files of 17×17 pixels, one subfolder per class."""
    random = np.random.default_rng(0)
    for kind in CLASSES:
        (folder / kind).mkdir(parents=True)
        for number in range(PER_CLASS):
            draw(kind, random).save(folder / kind / f"{kind}{number:02}.png")


def train_run(name: str, images: Path, folder: Path) -> None:
    """Train one of `RUNS` on `images`."""
    main(["train", *RUNS[name], "--data", str(images), *SHORT, "--out", str(folder)])
