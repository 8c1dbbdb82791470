"""Options, the sources by name, what is said about them, and the real sets where they are at hand."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from capsella.data import (
    ImageSet,
    NamedData,
    Splits,
    contact_sheet,
    load_data,
    source_table,
)
from capsella.data.npz import load_arrays
from capsella.errors import CapsellaError

DATA = os.environ.get("CAPSELLA_DATA", "")


def needs(file: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (Path(DATA) / file).is_file() or not DATA, reason=f"CAPSELLA_DATA has no {file}")


def test_digits_are_all_there_and_parted():
    splits = load_data(NamedData())
    assert [len(images) for images in splits.named().values()] == [1295, 143, 359]
    assert (splits.image_size, splits.channels, splits.classes) == ((8, 8), 1, tuple("0123456789"))
    every = torch.cat([images.images for images in splits.named().values()]).flatten(1).double() / 255 * 16
    source = torch.from_numpy(load_digits().data)
    distances = torch.cdist(every, source)
    assert distances.min(dim=1).values.max() < 0.3  # rounding to 8 bits
    assert len(distances.argmin(dim=1).unique()) == 1797  # each image of the source once: no image is on two sides


def test_fewer_test_images_are_the_same_for_the_same_seed_and_change_no_other_split():
    whole = load_data(NamedData())
    three, again, eight, other = (
        load_data(NamedData(test_per_class=number, split_seed=seed))
        for number, seed in ((3, 0), (3, 0), (8, 0), (3, 1))
    )
    assert set(three.test.counts().values()) == {3}
    assert torch.equal(three.test.images, again.test.images)
    assert not torch.equal(three.test.images, other.test.images)
    kept = {image.numpy().tobytes() for image in three.test.images}
    assert kept < {image.numpy().tobytes() for image in eight.test.images}
    assert kept < {image.numpy().tobytes() for image in whole.test.images}
    assert torch.equal(three.train.images, whole.train.images)
    assert torch.equal(three.validation.images, whole.validation.images)
    limited = load_data(NamedData(per_class=4, validation_per_class=2, test_per_class=3))
    assert [len(images) for images in limited.named().values()] == [40, 20, 30]
    assert torch.equal(limited.test.images, three.test.images)


def test_the_table_tells_what_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    (tmp_path / "wbc").mkdir()
    (tmp_path / "wbc/pbc_subset_224.npz").touch()
    rows = {row.name: row for row in source_table()}
    assert {"digits", "mnist", "fashion-mnist", "kmnist", "cifar10", "cifar10-jpeg", "pbc", "bccd"} < set(rows)
    assert rows["pbc-subset"].found == f"in {tmp_path / 'wbc'} (1 of 1 files)"
    assert rows["mnist"].found == "downloaded on first use"
    assert rows["digits"].found == "comes with scikit-learn"
    assert (rows["digits"].images, rows["digits"].classes) == ("1,438 / – / 359", 10)


def test_splits_must_be_alike_and_hold_images():
    def images(labels: list[int], size: int = 4, classes: tuple[str, ...] = ("a", "b")) -> ImageSet:
        pixels = torch.zeros(len(labels), 1, size, size, dtype=torch.uint8)
        return ImageSet(pixels, torch.tensor(labels, dtype=torch.int64), classes)

    both = images([0, 1])
    assert len(Splits("mine", both, both, images([0])).test) == 1  # a test set may lack a class
    for changes, message in [
        ({"test": images([])}, "test is empty"),
        ({"validation": images([])}, "validation is empty"),
        ({"train": images([0, 0])}, "'b'"),
        ({"test": images([0, 1], size=5)}, "image_size"),
        ({"test": images([0, 1], classes=("a", "c"))}, "classes"),
    ]:
        with pytest.raises(CapsellaError, match=message):
            Splits(**({"name": "mine", "train": both, "validation": both, "test": both} | changes))


def test_a_contact_sheet_has_a_row_a_class():
    values = torch.tensor([50, 100, 150, 200, 250], dtype=torch.uint8)
    images = ImageSet(values[:, None, None, None].expand(5, 1, 24, 24), torch.tensor([0, 0, 0, 0, 1]), ("many", "few"))
    sheet = np.asarray(contact_sheet(images, per_class=3))
    assert sheet.shape[0] == 2 * (48 + 4) + 4  # enlarged to 48 pixels a side
    pictures = [int(sheet[28, x, 0]) for x in range(sheet.shape[1] - 3 * 52 + 20, sheet.shape[1], 52)]
    assert pictures == [50, 150, 200]  # first, middle, last of the class
    assert int(sheet[80, sheet.shape[1] - 3 * 52 + 20, 0]) == 250
    with pytest.raises(ValueError, match="per_class"):
        contact_sheet(images, per_class=0)


def test_a_contact_sheet_of_large_images_has_thumbnails():
    images = ImageSet(torch.zeros(20, 3, 600, 800, dtype=torch.uint8), torch.arange(20) % 2, ("a", "b"))
    assert max(contact_sheet(images).size) < 1500


@pytest.mark.slow
@needs("mnist/train-images-idx3-ubyte.gz")
def test_the_real_mnist():
    splits = load_data(NamedData("mnist"))
    train, validation, test = (list(images.counts().values()) for images in splits.named().values())
    whole = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert [a + b for a, b in zip(train, validation, strict=True)] == whole
    assert test == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert [round(count / 10) for count in whole] == validation


def thin(file: str, root: Path) -> None:
    """Copy every tenth image of a packed set, so that tests are quick."""
    arrays = load_arrays(Path(DATA) / file)
    rows = np.arange(0, len(arrays["label"]), 10)
    images = [arrays["image"][slice(*arrays["image_offset"][row : row + 2])] for row in rows]
    arrays |= {name: values[rows] for name, values in arrays.items() if len(values) == len(arrays["label"])}
    arrays |= {"image": np.concatenate(images), "image_offset": np.cumsum([0, *map(len, images)])}
    (root / file).parent.mkdir(parents=True)
    np.savez(root / file, **arrays)  # type: ignore[arg-type]


@needs("wbc/bccd_augmented_128x96.npz")
def test_the_real_bccd_keeps_copies_of_a_photograph_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    thin("wbc/bccd_augmented_128x96.npz", tmp_path)
    splits = load_data(NamedData("bccd"))
    assert (splits.image_size, splits.channels) == ((96, 128), 3)
    sides = [set(images.metadata["photo"].tolist()) for images in splits.named().values()]
    assert sum(map(len, sides)) == len(set.union(*sides)) > 300
    assert all(0.05 < splits.validation.counts()[name] / splits.train.counts()[name] < 0.3 for name in splits.classes)
