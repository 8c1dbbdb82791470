"""A network that needs no training, and a folder of images for it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from capsella.models import ImageClassifier
from capsella.types import Output


class Darkness(ImageClassifier):
    """ "dark, plain" below a mean of one half, "light" above."""

    def __init__(self):
        super().__init__((4, 4), 1, ("dark, plain", "light"))
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
