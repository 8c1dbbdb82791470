"""A folder of one's own images, a run trained on it, and the command line called in this process."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from capsella.cli import main
from tests.pictures import write_empty
from tests.trained import RUNS

CAPSNET = RUNS["capsnet"]
NARROW = CAPSNET[1:]


class Answer(NamedTuple):
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module", autouse=True)  # one of the session would last into other folders
def _empty_pictures_in_reports() -> Iterator[None]:
    """To draw them takes longer than a short training. `trained` has real ones, and tests/report looks at them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capsella.report.pages.write_figure", write_empty)
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


@pytest.fixture(scope="session")
def images(image_folder: Path) -> Path:
    """Grey PNG files of 17×17 pixels, one subfolder per class."""
    return image_folder


@pytest.fixture(scope="session")
def trained(trained_run: Callable[[str], Path]) -> Path:
    """The run that `capsella train images-capsnet --data FOLDER` leaves."""
    return trained_run("capsnet")


@pytest.fixture
def copied(images: Path, trained: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the images and of the run that was trained on them, both to be changed."""
    folder, run = shutil.copytree(images, tmp_path / "my images"), shutil.copytree(trained, tmp_path / "run")
    config = (run / "config.json").read_text().replace(json.dumps(str(images))[1:-1], json.dumps(str(folder))[1:-1])
    (run / "config.json").write_text(config)
    return folder, run


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A file that is no image, in a folder of its own."""
    path = tmp_path / "new" / "broken.png"
    path.parent.mkdir()
    path.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    return path
