"""Runs without training, and test images: what the page is about."""

import numpy as np
import pytest
import torch

from capsella.data import ImageSet, PairSet
from capsella.evaluation import evaluate
from capsella.explorer import Subject
from capsella.models import create_model

SIZE = 17  # the least that CapsNet's kernels allow
NAMES = ("round", "<b>&amp;</b>", "$\\bad{")


def model(name="sabour2017_capsnet", size=SIZE, **options):
    torch.manual_seed(0)
    made = create_model(name, image_size=size, **{"channels": 1, "classes": NAMES, **options}).eval()
    for parameter in getattr(made, "capsule_layers", torch.nn.Module()).parameters():
        parameter.data *= 30  # fresh weights make votes so short that routing hardly moves
    return made


def subject(made, images=None):
    if images is None:
        pixels = torch.randint(0, 256, (30, made.channels, *made.image_size), dtype=torch.uint8)
        images = ImageSet(pixels, torch.arange(30) % len(made.classes), made.classes)
    return Subject("my run", made, images, tuple(range(len(images))), len(images), evaluate(made, images))


@pytest.fixture(scope="session")
def capsnet():
    return subject(model())


@pytest.fixture(scope="session")
def matrix_capsnet():
    return subject(model("hinton2018_matrix_capsnet_small", reconstruction=True))


@pytest.fixture(scope="session")
def plain_capsnet():
    return subject(model(reconstruction=False))


@pytest.fixture(scope="session")
def cnn():
    return subject(model("sabour2017_cnn"))


@pytest.fixture(scope="session")
def pairs():
    """Two images, each 9×9 and shifted by up to 4 pixels, on a canvas of 17×17."""
    random = np.random.default_rng(0)
    source = ImageSet(
        torch.from_numpy(random.integers(0, 256, (30, 1, 9, 9), dtype=np.uint8)), torch.arange(30) % 3, NAMES
    )
    return subject(model(), PairSet(source, 12))
