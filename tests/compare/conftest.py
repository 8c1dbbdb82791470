"""A folder of tiny colour images, and a comparison of it."""

import numpy as np
import pytest
from PIL import Image

from tests.compare.made import FLAGS, SIZE, call


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Red, green and blue noise, 12 images a class: 9 to train on or so."""
    folder = tmp_path_factory.mktemp("own") / "colours"
    random = np.random.default_rng(0)
    for channel, kind in enumerate(("red", "green", "blue")):
        (folder / kind).mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 120, (SIZE, SIZE, 3))
            pixels[..., channel] += 120
            Image.fromarray(pixels.astype(np.uint8)).save(folder / kind / f"{number}.png")
    return folder


@pytest.fixture(scope="session")
def done(images):
    folder = images.parent / "comparison"
    call(images, *FLAGS, "--out", folder)
    return folder


@pytest.fixture
def wrong(capsys):
    """What a command that fails says."""

    def fail(*words):
        with pytest.raises(SystemExit):
            call(*words)
        return capsys.readouterr().err

    return fail
