"""Networks for the tests: one that needs no training with a folder of images for it, and three small trained ones."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from capsella.data import NamedData, Splits, batches, load_data
from capsella.layers import DenseCapsules, MatrixPrimaryCapsules, PrimaryCapsules
from capsella.losses import LossOptions, total_loss
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.classifiers import ConvolutionalClassifier
from capsella.routing import EMRouting
from capsella.types import Output

DIGITS = tuple("0123456789")
SHAPE = {"image_size": (12, 12), "channels": 1, "classes": DIGITS}


def small_cnn() -> ImageClassifier:
    layers = [nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 32), nn.ReLU()]
    return ConvolutionalClassifier(nn.Sequential(*layers, nn.Linear(32, 10)), **SHAPE)


def small_capsnet() -> ImageClassifier:
    return CapsuleClassifier(
        backbone=nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU()),
        primary=PrimaryCapsules(16, types=4, pose=4, kernel=3, stride=2),
        capsule_layers=nn.Sequential(DenseCapsules((3, 3), 4, 4, 10, 8)),
        decoder=None,
        **SHAPE,
    )


def small_matrix_capsnet() -> ImageClassifier:
    routing = EMRouting(cost_scale=100.0)
    return CapsuleClassifier(
        backbone=nn.Sequential(nn.Conv2d(1, 32, 5, 2), nn.ReLU()),
        primary=MatrixPrimaryCapsules(32, 8, 9),
        capsule_layers=nn.Sequential(DenseCapsules((4, 4), 8, 9, 10, 9, pose="matrix", routing=routing)),
        decoder=None,
        **SHAPE,
    )


NETWORKS: dict[str, tuple[Callable[[], ImageClassifier], LossOptions]] = {
    "cnn": (small_cnn, LossOptions(name="cross_entropy")),
    "dynamic": (small_capsnet, LossOptions(name="margin")),
    "em": (small_matrix_capsnet, LossOptions(name="spread")),
}


@pytest.fixture(scope="session")
def digits() -> Splits:
    return load_data(NamedData("digits", size=12, per_class=100, test_per_class=3))


@pytest.fixture(scope="session")
def trained(digits: Splits) -> dict[str, ImageClassifier]:
    """The three networks by name."""
    networks = {}
    for name, (create, loss) in NETWORKS.items():
        torch.manual_seed(0)
        model = networks[name] = create().train()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        steps = 0
        for _ in range(3):
            for images, labels, _ in batches(digits.train, 32, order=torch.randperm(len(digits.train))):
                margin = min(0.9, 0.2 + steps / 90)
                optimizer.zero_grad()
                total_loss(model(images), images, labels, loss, spread=margin).total.backward()
                optimizer.step()
                steps += 1
        model.eval()
    return networks


class Darkness(ImageClassifier):
    """ "dark, plain" below a mean of one half, "light" above."""

    def __init__(self):
        super().__init__((4, 4), 1, ("dark, plain", "light"))
        self.name = "darkness"
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images, labels=None):
        mean = images.mean((1, 2, 3))
        return Output(self.scale * torch.stack([1 - mean, mean], 1))


@pytest.fixture
def darkness() -> Darkness:
    return Darkness()


def save_image(path: Path, value: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 6), value, np.uint8)).save(path, format=None if path.suffix else "PNG")
    return path


@pytest.fixture
def save():
    return save_image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, value in (("b.png", 0), ("a.PNG", 255), ("deeper/c.bmp", 51), (".hidden.png", 9), (".trash/d.png", 9)):
        save_image(tmp_path / "images" / name, value)
    (tmp_path / "images" / "notes.txt").write_text("no image")
    return tmp_path / "images"
