"""Ridge regressions from poses, on drawn cells and a tiny network without training."""

import numpy as np
import pytest
import torch

from capsella.data import ImageSet
from capsella.models import create_model
from capsella.models.inference import extract
from tools.cell_attributes import describe
from tools.pose_pictures import TARGETS, explained, probe_pictures, targets_of

SIDE = 24


def cells(number, seed):
    """Draw a purple nucleus in a pale cell somewhere on a bright background; return the images and the centres."""
    random = np.random.default_rng(seed)
    centres = random.uniform(9, 15, (number, 2))
    rows, columns = np.mgrid[:SIDE, :SIDE]
    images = np.empty((number, SIDE, SIDE, 3))
    for image, (row, column) in zip(images, centres, strict=True):
        distance = np.hypot(rows - row, columns - column)[..., None]
        radius = random.uniform(3, 5)
        image[:] = np.where(distance < radius, (90, 60, 140), np.where(distance < 7, (210, 170, 190), (235, 225, 230)))
    images += random.normal(0, 2, images.shape)
    pixels = torch.from_numpy(images.clip(0, 255).astype(np.uint8)).permute(0, 3, 1, 2)
    return ImageSet(pixels, torch.arange(number) % 2, ("lymphocyte", "monocyte")), centres


@pytest.fixture(scope="module")
def model():
    return create_model(
        "mazzia2021_efficient_capsnet", image_size=SIDE, channels=3, classes=("lymphocyte", "monocyte"), decoder_width=8
    )


def test_descriptions_of_a_capsule_network(model):
    images, _ = cells(5, 0)
    described = describe(model, images)
    assert {name: block.shape[1] for name, block in described.items() if name != "maps"} == {
        "class": 2,
        "statistics": 256,
        "primary capsules": 128,
        "poses": 32,
        "winning pose": 32,
    }
    _, extracted = extract(model.eval(), images.images.float() / 255)
    np.testing.assert_allclose(described["statistics"], extracted["features"].detach(), rtol=1e-4, atol=1e-5)
    winning = described["winning pose"].reshape(5, 2, 16)
    predicted = described["class"].argmax(1)
    np.testing.assert_allclose(winning[range(5), predicted], extracted["poses"].detach(), rtol=1e-4, atol=1e-5)
    assert not winning[range(5), 1 - predicted].any()


def test_targets_are_those_of_the_nucleus(model):
    images, centres = cells(6, 1)
    images.images[2] = 230  # nothing is stained
    kept, targets = targets_of(images)
    others = [0, 1, 3, 4, 5]
    assert kept.labels.tolist() == images.labels[others].tolist()
    np.testing.assert_allclose(SIDE * targets[:, TARGETS["nucleus centre"]] - 0.5, centres[others], atol=0.6)
    np.testing.assert_allclose(255 * targets[:, TARGETS["nucleus colour"]], [[90, 60, 140]] * 5, atol=30)
    assert targets[:, TARGETS["picture"]].shape == (5, 3 * 28**2)


def test_explained_variance():
    random = np.random.default_rng(0)
    actual = random.normal(size=(200, 3))
    half = explained(actual + random.normal(0, 0.5**0.5, actual.shape), actual, np.zeros(3))
    assert half["low"] < half["r2"] < half["high"]
    assert half["r2"] == pytest.approx(0.5, abs=0.1)
    assert explained(actual, actual, np.zeros(3)) == {"r2": 1, "low": 1, "high": 1}


def test_every_code_is_judged(model):
    results = probe_pictures(model, cells(60, 2)[0], cells(30, 3)[0])
    assert results["images"] == {"train": 60, "test": 30, "compared": 30}
    codes = results["codes"]
    assert codes["class alone"]["nearest_own"]["share"] <= 2 / 30  # a drawing per class
    assert codes["class alone"]["nucleus centre"]["r2"] < 0.2
    assert codes["pixels, 32 components"]["nearest_own"]["share"] > 0.5
    assert codes["maps, 256 components"]["nucleus centre"]["r2"] > 0.8
    assert 0 <= results["decoder_nearest_own"] < 0.2
