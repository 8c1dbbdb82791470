"""A folder of one's own images, a run trained on it, and the command line called in this process."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.cli import main
from capsella.cli.help_texts import join_lines
from capsella.explain.plots import write_png
from tests.pictures import write_empty

SIZE = 17  # the least that CapsNet's kernels allow
CLASSES = ("columns", "rows", "rings")
PER_CLASS = 11  # 8 to train, 1 to validate, 2 to test
SHORT = ["--size", str(SIZE), "--epochs", "1", "--batch-size", "8", "--accelerator", "cpu", "--no-flip"]
# CapsNet with a tenth of its weights, which take the time: its layers are all there.
NARROW = ["--model.primary-types", "4", "--model.decoder-width", "16"]
CAPSNET = ["images-capsnet", *NARROW]


@pytest.fixture(scope="session", autouse=True)
def _lines_are_joined() -> None:
    """As a command does first: tyro keeps the first texts that it reads."""
    join_lines()


class Answer(NamedTuple):
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module", autouse=True)  # one of the session would last into other folders
def _empty_pictures_in_reports() -> Iterator[None]:
    """To draw them takes longer than a short training. `trained` has real ones, and tests/explain looks at them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capsella.explain.page.write_png", write_empty)
        yield


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # wider, the options stand in two columns


@pytest.fixture(autouse=True)
def _determinism_ends_with_the_test():
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """`cli("train", "demo")` is `capsella train demo`."""

    def call(*words: object) -> Answer:
        capsys.readouterr()
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Answer(code, *capsys.readouterr())

    return call


def draw(kind: str, random: np.random.Generator) -> Image.Image:
    """Stripes or rings in noise."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    distance = {"columns": columns, "rows": rows, "rings": np.hypot(rows - 8, columns - 8)}[kind]
    pixels = 128 + 90 * np.sin(distance * 1.6 + random.uniform(0, 6)) + random.normal(0, 15, (SIZE, SIZE))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grey PNG files of 17×17 pixels, a sub-folder a class."""
    folder = tmp_path_factory.mktemp("own") / "my images"
    random = np.random.default_rng(0)
    for kind in CLASSES:
        os.makedirs(folder / kind)
        for number in range(PER_CLASS):
            draw(kind, random).save(folder / kind / f"{kind}{number:02}.png")
    return folder


@pytest.fixture(scope="session")
def trained(images: Path) -> Path:
    """The run that `capsella train images-capsnet --data.path FOLDER` leaves."""
    folder = images.parent / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capsella.explain.page.write_png", write_png)
        main(["train", *CAPSNET, "--data.path", str(images), *SHORT, "--out", str(folder)])
    return folder
