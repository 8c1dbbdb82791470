"""A capsule network and a data set so small that a whole training takes a fraction of a second."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from capsella.data import NamedData
from capsella.layers import DenseCapsules, DenseDecoder, PrimaryCapsules
from capsella.models.base import grid_after, register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.routing import DynamicRouting, Routing
from capsella.training import AugmentOptions, ComputeOptions, ModelOptions, Recipe, Run, train

SIZE = 12


def tiny_capsnet(
    *,
    image_size: tuple[int, int] = (SIZE, SIZE),
    channels: int = 1,
    classes: tuple[str, ...] = tuple("0123456789"),
    routing: Routing = DynamicRouting(),
) -> CapsuleClassifier:
    """A CapsNet for 12×12 images, with dropout, whose randomness a resumed run must repeat."""
    grid = grid_after(image_size, [(5, 1), (3, 2)])
    return CapsuleClassifier(
        backbone=nn.Sequential(nn.Conv2d(channels, 8, 5), nn.ReLU(), nn.Dropout(0.1)),
        primary=PrimaryCapsules(8, types=4, pose=4, kernel=3, stride=2),
        capsule_layers=nn.Sequential(DenseCapsules(grid, 4, 4, len(classes), 8, routing=routing)),
        decoder=DenseDecoder(len(classes), 8, (channels, *image_size), hidden=(32,)),
        image_size=image_size,
        channels=channels,
        classes=classes,
    )


@pytest.fixture(autouse=True)
def _tiny_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsella.models.base._MODELS", {})
    register_model(tiny_capsnet)


@pytest.fixture(autouse=True)
def _determinism_ends_with_the_test():
    yield
    torch.use_deterministic_algorithms(False)


def tiny_recipe(**fields: Any) -> Recipe:
    """A recipe of 7 steps per epoch: 50 training images and 29 for validation, of scikit-learn's digits."""
    data = NamedData("digits", size=SIZE, per_class=5, validation=0.02)
    defaults = {"data": data, "augment": AugmentOptions(shift=1), "epochs": 2, "batch_size": 8}
    return Recipe(model=ModelOptions("tiny_capsnet"), **{**defaults, **fields})


@pytest.fixture
def tiny() -> Callable[..., Recipe]:
    return tiny_recipe


def train_quietly(recipe: Recipe, folder: Path, **compute: Any) -> Run:
    on = ComputeOptions(**{"accelerator": "cpu", **compute})
    return train(recipe, folder, name="tiny", compute=on, console=Console(quiet=True))


@pytest.fixture
def quiet_train(tmp_path: Path) -> Callable[..., Run]:
    """`train` without output, into a folder of the test."""
    return lambda recipe, name="run", **compute: train_quietly(recipe, tmp_path / name, **compute)


@pytest.fixture(scope="session")
def _trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capsella.models.base._MODELS", {})
        register_model(tiny_capsnet)
        train_quietly(tiny_recipe(), folder)
    return folder


@pytest.fixture
def run(_trained_folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder of a finished run of `tiny_recipe()`."""
    shutil.copytree(_trained_folder, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def last_checkpoint() -> Callable[[Path], dict[str, Any]]:
    return lambda folder: torch.load(folder / "last.ckpt", weights_only=True)
