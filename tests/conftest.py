"""For every test: shape annotations are checked, and random numbers are the same on every run."""

import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from jaxtyping import config, install_import_hook
from PIL import Image

# Before the package is imported: in tests, and only there, annotated shapes of these parts are checked on each call.
install_import_hook(["capsella.routing", "capsella.layers", "capsella.losses"], "beartype.beartype")

import torch  # noqa: E402

from tests.pictures import write_empty  # noqa: E402
from tests.trained import draw_folder, make_once, train_run  # noqa: E402

# Triton decides when kernels are imported: without a GPU they run as NumPy code.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile("capsella", deadline=None, max_examples=25, derandomize=True, database=None)
settings.load_profile("capsella")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _machine_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`--precision auto` is float32 on every machine, and the user's cache folder stays as it is."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capsella.training.resolve.measure_ratio", lambda: 1.0)
        patch.setattr("capsella.training.resolve.MEMORY", cache / "precision.json")
        patch.setattr("capsella._native.multiplies_bfloat16", lambda: False)
        patch.setenv("XDG_CACHE_HOME", str(cache))  # of the processes that tests start
        yield


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 33 grey images in three classes. Do not change it: copy it."""
    return make_once(tmp_path_factory, "my images", draw_folder)


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory, image_folder: Path) -> Callable[[str], Path]:
    """`trained_run("capsnet")` is the folder of a run on `image_folder`; also "cnn" and "em". Copy it to change it."""

    def get(name: str) -> Path:
        return make_once(tmp_path_factory, f"run-{name}", lambda folder: train_run(name, image_folder, folder))

    return get


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` rewrites the golden files, which hold the texts of reports."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what tests produce")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("verdict.txt", text)` compares a text with tests/PART/golden/verdict.txt."""

    def check(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written, but not drawn."""
    monkeypatch.setattr("capsella.report.pages.write_figure", write_empty)


@pytest.fixture
def as_users_call() -> Iterator[None]:
    """Without the annotation checks, so that a wrong shape reaches the package's own error message."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


class ReachedError(Exception):
    """The command line has understood a command and was about to carry it out."""


# What commands do after they have understood their options; all others stop once `parse` is done.
FIRST_STEPS = (
    "capsella.cli.train.ray_session",
    "capsella.experiments.repeats.resume_run",
    "capsella.experiments.search.study.open_search",
)


@pytest.fixture
def understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], bool]]:
    """Whether a command line would be carried out, with cells/ and runs/demo; nothing is trained or loaded."""
    from capsella.cli.flags import parse
    from capsella.cli.main import COMMANDS, main
    from capsella.routing import ROUTINGS

    def stop(*arguments: object, **options: object) -> None:
        raise ReachedError

    def stop_when_parsed(*arguments: Any) -> None:
        parse(*arguments)
        raise ReachedError

    for name in ("eosinophil", "neutrophil"):
        folder = tmp_path / "cells" / name
        folder.mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (64, 64)).save(folder / f"{number}.png")
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "examples").symlink_to(Path(__file__).parents[1] / "examples")
    (tmp_path / "my_routing.py").symlink_to(tmp_path / "examples" / "cosine_routing.py")
    monkeypatch.chdir(tmp_path)
    for step in FIRST_STEPS:
        monkeypatch.setattr(step, stop)
    for command in COMMANDS:
        if command not in ("train", "search"):
            monkeypatch.setattr(importlib.import_module(f"capsella.cli.{command}"), "parse", stop_when_parsed)

    def check(line: str) -> bool:
        words = shlex.split(line, comments=True)[1:]
        try:
            main(words)
        except ReachedError:
            return True
        except SystemExit as stop:
            return stop.code == 0 and bool({"--help", "--help-all"} & set(words))
        return words == ["--version"]

    yield check
    ROUTINGS.pop("cosine", None)  # of examples/cosine_routing.py
    for module in ("cosine_routing", "my_routing"):
        sys.modules.pop(module, None)
