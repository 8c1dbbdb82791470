"""Classes that follow from something that is not the object."""

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data import ImageSet
from capsella.evaluation.shortcuts import find_shortcuts


def noise(images=300, classes=3, seed=0):
    random = np.random.default_rng(seed)
    pixels = torch.from_numpy(random.integers(0, 256, (images, 3, 16, 16), dtype=np.uint8))
    labels = torch.from_numpy(random.integers(0, classes, images))
    return ImageSet(pixels, labels, tuple("abcde")[:classes])


def by_cue(images, folder=None):
    return {shortcut.cue: shortcut for shortcut in find_shortcuts(images, folder)}


def test_nothing_is_found_in_noise():
    found = [shortcut for seed in range(5) for shortcut in find_shortcuts(noise(seed=seed)) if shortcut.is_found]
    assert not found


def test_a_lilac_border_gives_a_rare_class_away():
    """As in `pbc`: all images of a rare class have another background, and a few of the others."""
    images = noise(600, classes=5)
    images.labels[:20] = 4
    images.labels[20:] %= 4
    lilac = torch.arange(600) < 32
    images.images[lilac, 0, :1] = images.images[lilac, 0, -1:] = 250
    images.images[lilac, 0, :, :1] = images.images[lilac, 0, :, -1:] = 250
    border = by_cue(images)["border colour"]
    assert border.is_found
    assert set(border.given_away) == {"e"}


def test_brightness():
    images = noise()
    images.images[images.labels == 0] //= 2
    brightness = by_cue(images)["brightness"]
    assert brightness.is_found
    assert brightness.accuracy.low > brightness.guess == pytest.approx(1 / 3)


def test_size_type_and_camera_of_the_files(tmp_path):
    images, names = noise(60, classes=2), []
    for k, label in enumerate(images.labels.tolist()):
        name = f"{k}.{'jpg' if label else 'png'}"
        exif = Image.Exif()
        exif[271], exif[272] = "Maker", "one" if label else "two"
        Image.new("RGB", (20 + 4 * label, 20)).save(tmp_path / name, exif=exif)
        names.append(name)
    found = by_cue(ImageSet(images.images, images.labels, images.classes, tuple(names)), tmp_path)
    assert {cue for cue, shortcut in found.items() if shortcut.is_found} == {"image size", "file type", "camera"}
    assert found["camera"].accuracy.estimate == 1
