"""MNIST on a canvas of 40×40: placed at random, under affine maps, and as published."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.io import savemat
from scipy.ndimage import affine_transform

from capsella.data import NamedData, load_data, source_table
from capsella.data.sources import affnist

from .test_idx import pack

OPTIONS = NamedData("mnist40", validation=0.25)


def digits(number, seed):
    """Random light in a 20×20 box on 28×28, as MNIST's digits are."""
    images = np.zeros((number, 28, 28), np.uint8)
    images[:, 4:24, 4:24] = np.random.default_rng(seed).integers(0, 256, (number, 20, 20))
    return images


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """MNIST of 40 training and 20 test images."""
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    for name, number in (("train", 40), ("t10k", 20)):
        (tmp_path / "mnist" / f"{name}-images-idx3-ubyte.gz").write_bytes(pack(digits(number, number)))
        (tmp_path / "mnist" / f"{name}-labels-idx1-ubyte.gz").write_bytes(pack(np.arange(number, dtype=np.uint8) % 10))
    return tmp_path


def write_published(root, images, labels):
    path = root / "affnist" / "test.mat.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    data = {"image": images.reshape(len(images), -1).T, "label_int": labels[None]}
    savemat(content, {"affNISTdata": data}, do_compression=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("test.mat", content.getvalue())


def corner(image):
    """Where a digit of 20×20 with light in all its corners lies."""
    rows, columns = ((image[0] > 0).any(axis).nonzero() for axis in (1, 0))
    return int(rows[0]) - 4, int(columns[0]) - 4


def test_training_images_lie_in_the_middle_and_the_others_at_random():
    splits = load_data(OPTIONS)
    assert splits.image_size == (40, 40)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (30, 10, 20)
    sources = torch.from_numpy(digits(40, 40))
    for image in splits.train.images[:, 0]:
        assert any(torch.equal(image[6:34, 6:34], source) for source in sources)
        assert int((image > 0).sum()) == int((image[6:34, 6:34] > 0).sum())
    places = [corner(image) for image in splits.test.images]
    for (top, left), image, source in zip(places, splits.test.images[:, 0], digits(20, 20), strict=True):
        assert np.array_equal(image[top : top + 28, left : left + 28].numpy(), source)
        assert 0 <= min(top, left) <= max(top, left) <= 12
    assert len(set(places)) > 10
    assert len({corner(image) for image in splits.validation.images}) > 5


def test_the_same_digits_are_trained_on_whatever_the_test_is():
    plain, like = load_data(OPTIONS), load_data(replace(OPTIONS, name="affnist-like"))
    assert torch.equal(plain.train.images, like.train.images)
    assert torch.equal(plain.validation.images, like.validation.images)
    assert torch.equal(plain.test.labels, like.test.labels)
    assert not torch.equal(plain.test.images, like.test.images)
    assert load_data(replace(OPTIONS, name="affnist-like", size=20, channels=3)).test.images.shape == (20, 3, 20, 20)


def test_the_maps_against_scipy():
    images = torch.from_numpy(digits(6, 1))[:, None]
    drawn = affnist.affine_like_affnist(images, seed=5)
    A, t = affnist._maps(images, np.random.default_rng(5))
    swap = np.array([[0, 1], [1, 0]])  # scipy counts (down, across)
    for image, matrix, move, ours in zip(images[:, 0].double().numpy(), A, t, drawn[:, 0].numpy(), strict=True):
        back = swap @ np.linalg.inv(matrix) @ swap
        offset = np.full(2, 13.5) - back @ (np.full(2, 19.5) + swap @ move)
        expected = affine_transform(image, back, offset, (40, 40), order=1)
        np.testing.assert_allclose(ours.astype(float), expected, atol=0.6)


def test_the_ranges_of_the_maps():
    """Scale, shear and angle are read back off each matrix: R · [1 s; 0 1] · diag(x, y)."""
    images = torch.from_numpy(digits(400, 2))[:, None]
    A, t = affnist._maps(images, np.random.default_rng(0))
    angle = np.degrees(np.arctan2(A[:, 1, 0], A[:, 0, 0]))
    across = np.hypot(A[:, 0, 0], A[:, 1, 0])
    down = np.linalg.det(A) / across
    shear = (A[:, :, 0] * A[:, :, 1]).sum(1) / across / down
    for values, low, high in ((angle, -20, 20), (across, 0.8, 1.2), (down, 0.8, 1.2), (shear, -0.2, 0.2)):
        assert low <= values.min() < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < values.max() <= high
    assert t.min() < -6
    assert t.max() > 6


def test_the_published_file(root):
    images = np.random.default_rng(0).integers(0, 256, (12, 40, 40), dtype=np.uint8)
    labels = np.arange(12, dtype=np.uint8) % 10
    write_published(root, images, labels)
    test = load_data(replace(OPTIONS, name="affnist")).test
    assert np.array_equal(test.images[:, 0].numpy(), images)
    assert test.labels.tolist() == labels.tolist()
    (row,) = [row for row in source_table() if row.name == "affnist"]
    assert "1 of 1 files" in row.found
