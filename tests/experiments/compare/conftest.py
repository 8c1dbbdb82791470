"""A folder of tiny colour images, a small pretrained network, and a comparison."""

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.models import create_model
from tests.experiments.compare.made import FLAGS, SIZE, call


def write_images(folder, counts, size=SIZE):
    """Noise in which red, green or blue prevails: the classes differ in more than the border."""
    random = np.random.default_rng(0)
    for number, (kind, count) in enumerate(counts.items()):
        (folder / kind).mkdir(parents=True)
        for index in range(count):
            pixels = random.integers(0, 160, (size, size, 3))
            pixels[4:-4, 4:-4, number % 3] += 90 - 10 * (number // 3)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / kind / f"{index}.png")
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Three classes of 12 images."""
    return write_images(tmp_path_factory.mktemp("own") / "colours", dict.fromkeys(("red", "green", "blue"), 12))


@pytest.fixture(scope="session")
def backbone(tmp_path_factory):
    """A network that was trained before, as far as the comparison can tell."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("backbone") / "small"
    create_model("he2016_resnet10", image_size=32, channels=3, classes=2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def done(images, backbone):
    folder = images.parent / "comparison"
    call(images, *FLAGS, "--folds", 3, "--backbone", backbone, "--out", folder)
    return folder


@pytest.fixture
def wrong(capsys):
    """What a command that fails says."""

    def fail(*words):
        with pytest.raises(SystemExit):
            call(*words)
        return capsys.readouterr().err

    return fail
