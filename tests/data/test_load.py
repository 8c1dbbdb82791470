"""Splits, limits and split files: the same images come back, none is on two sides; what is said about them."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from capsella.data import (
    THESIS_SETS,
    DataOptions,
    FolderData,
    ImageSet,
    NamedData,
    NpzData,
    Splits,
    load_data,
    save_split,
)
from capsella.data.summary import too_few
from capsella.errors import CapsellaError

CLASSES = ("blast", "monocyte", "smudge")


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """Three classes of 20 images each, no two alike."""
    folder = tmp_path / "cells"
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.full((3, 3), 60 * label + number, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:02}.png")
    return folder


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """The same number of images as a file, with one name for all of them."""
    labels = np.arange(60) % 3
    images = np.arange(60, dtype=np.uint8)[:, None, None].repeat(3, 1).repeat(3, 2)
    np.savez(tmp_path / "packed.npz", images=images, labels=labels, name=np.array(["cell.png"] * 60), slide=labels // 2)
    return tmp_path / "packed.npz"


def folder(path: Path, **changes: object) -> DataOptions:
    return FolderData(path, **changes)  # type: ignore[arg-type]


def npz(path: Path, **changes: object) -> DataOptions:
    return NpzData(path, **changes)  # type: ignore[arg-type]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def assert_same(first: Splits, second: Splits) -> None:
    assert first.classes == second.classes
    for before, after in zip(first.named().values(), second.named().values(), strict=True):
        assert torch.equal(before.images, after.images)
        assert torch.equal(before.labels, after.labels)
        assert before.files == after.files
        assert before.metadata.keys() == after.metadata.keys()


def contents(splits: Splits) -> dict[str, set[bytes]]:
    return {split: {image.numpy().tobytes() for image in images.images} for split, images in splits.named().items()}


LIMITS = {"split_seed": 5, "per_class": 4, "validation_per_class": 1, "first_classes": 2}


def test_a_folder_comes_back_with_its_limits(cells: Path, tmp_path: Path):
    options = folder(cells, **LIMITS)
    counts = save_split(options, tmp_path / "split.csv")
    assert [tuple(row) for row in counts] == [("blast", 4, 1, 4), ("monocyte", 4, 1, 4)]
    again = load_data(folder(cells, split_file=tmp_path / "split.csv", split_seed=99))
    assert_same(load_data(options), again)
    assert again.classes == CLASSES[:2]
    assert len(rows(tmp_path / "split.csv")) == 60
    assert sum(row["split"] == "unused" for row in rows(tmp_path / "split.csv")) == 60 - 18


def test_what_a_split_file_leaves_unused_is_not_read(cells: Path, tmp_path: Path):
    save_split(folder(cells, first_classes=2), tmp_path / "split.csv")
    (cells / "smudge/00.png").write_bytes(b"broken")
    assert load_data(folder(cells, split_file=tmp_path / "split.csv")).classes == CLASSES[:2]


@pytest.mark.parametrize("name", ["npz", "digits"])
def test_images_without_names_of_their_own_are_counted(name: str, packed: Path, tmp_path: Path):
    options = npz(packed, **LIMITS) if name == "npz" else NamedData(**LIMITS)  # type: ignore[arg-type]
    save_split(options, tmp_path / "split.csv")
    kind = npz(packed) if name == "npz" else NamedData()
    plain = replace(kind, split_file=tmp_path / "split.csv", split_seed=99)
    assert_same(load_data(options), load_data(plain))
    table = rows(tmp_path / "split.csv")
    assert [row["index"] for row in table] == [str(number) for number in range(60 if name == "npz" else 1797)]
    assert {row["class"] for row in table} == set("012" if name == "npz" else "0123456789")


def test_a_file_that_does_not_fit_its_source(cells: Path, packed: Path, tmp_path: Path):
    save_split(npz(packed), tmp_path / "index.csv")
    save_split(folder(cells), tmp_path / "file.csv")
    text = (tmp_path / "index.csv").read_text()
    wrong = tmp_path / "wrong.csv"
    for changed, message in [
        ((tmp_path / "file.csv").read_text(), "index, class and split"),
        (text + "60,0,unused\n", "60 is not in"),
        (text.replace("\n1,1,", "\n1,2,"), "image 1 of"),
    ]:
        wrong.write_text(changed)
        with pytest.raises(CapsellaError, match=message):
            load_data(npz(packed, split_file=wrong))


def test_the_thesis_sets_of_digits():
    sets = {name: load_data(NamedData(**limits)) for name, limits in THESIS_SETS.items()}
    assert set(sets["mini"].train.counts().values()) == {100}
    assert sets["basic"].classes == tuple("01234")
    assert_same(sets["hard"], load_data(NamedData()))
    images = {name: contents(splits) for name, splits in sets.items()}
    assert images["mini"]["train"] < images["small"]["train"] <= images["medium-size"]["train"]
    assert images["basic"]["train"] < images["medium"]["train"] == images["hard"]["train"]
    for name in ("mini", "small", "medium-size"):
        assert images[name]["test"] == images["hard"]["test"]
        assert images[name]["validation"] == images["hard"]["validation"]
    assert images["basic"]["test"] < images["hard"]["test"]
    with pytest.raises(ValueError, match="first_classes"):
        load_data(NamedData(first_classes=11))
    for splits in images.values():
        assert not splits["train"] & splits["test"]
        assert not splits["train"] & splits["validation"]
        assert not splits["validation"] & splits["test"]


class TestFolds:
    def test_each_image_is_tested_once_and_the_rest_is_parted_as_ever(self, cells: Path):
        every = [load_data(folder(cells, folds=4, fold=fold)) for fold in range(4)]
        tested = sorted(file for splits in every for file in splits.test.files or ())
        assert tested == sorted(f"{name}/{number:02}.png" for name in CLASSES for number in range(20))
        for splits in every:
            assert [len(part) for part in splits.named().values()] == [42, 3, 15]
            assert splits.test.counts() == dict.fromkeys(CLASSES, 5)

    def test_test_images_that_are_set_apart_are_in_no_fold(self):
        whole = load_data(NamedData())
        folds = [load_data(NamedData(folds=3, fold=fold)) for fold in range(3)]
        assert sum(len(splits.test) for splits in folds) == len(whole.train) + len(whole.validation)
        apart = {image.numpy().tobytes() for image in whole.test.images}
        seen = {
            image.numpy().tobytes() for splits in folds for part in splits.named().values() for image in part.images
        }
        assert not apart & seen

    def test_copies_are_in_one_fold(self, cells: Path):
        (cells / "blast" / "copy.png").write_bytes((cells / "blast" / "07.png").read_bytes())
        for fold in range(3):
            files = load_data(folder(cells, folds=3, fold=fold)).test.files or ()
            assert ("blast/copy.png" in files) == ("blast/07.png" in files)


def test_digits_are_all_there_and_parted():
    splits = load_data(NamedData())
    assert [len(images) for images in splits.named().values()] == [1295, 143, 359]
    assert (splits.image_size, splits.channels, splits.classes) == ((8, 8), 1, tuple("0123456789"))
    every = torch.cat([images.images for images in splits.named().values()]).flatten(1).double() / 255 * 16
    source = torch.from_numpy(load_digits().data)
    distances = torch.cdist(every, source)
    assert distances.min(dim=1).values.max() < 0.3  # rounding to 8 bits
    assert len(distances.argmin(dim=1).unique()) == 1797  # each image of the source once: no image is on two sides


def test_fewer_test_images_change_no_other_split():
    whole, three, eight = (load_data(NamedData(test_per_class=number)) for number in (None, 3, 8))
    assert contents(three)["test"] < contents(eight)["test"] < contents(whole)["test"]
    assert torch.equal(three.train.images, whole.train.images)
    assert torch.equal(three.validation.images, whole.validation.images)
    limited = load_data(NamedData(per_class=4, validation_per_class=2, test_per_class=3))
    assert [len(images) for images in limited.named().values()] == [40, 20, 30]
    assert torch.equal(limited.test.images, three.test.images)


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


NAMES = ("[red]", "b", "c")


def counted(*counts):
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    return ImageSet(torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8), labels, NAMES)


def of_sizes(train, test):
    return Splits("cells", counted(*train), counted(1, 1, 1), counted(*test))


def test_small_classes_are_named_with_their_numbers():
    train, test = too_few(of_sizes((10, 9, 9), (5, 4, 0)))
    assert train.endswith("b (9), c (9)")
    assert test.endswith("b (4), c (0)")


@pytest.mark.parametrize(("largest", "is_named"), [(29, False), (30, True)])
def test_uneven_classes_are_named(largest, is_named):
    said = too_few(of_sizes((20, largest, 20), (9, 9, 9)))
    assert bool(said) == is_named
    if is_named:
        assert "b has 1.5 times" in said[0]


def test_classes_of_few_patients_are_named():
    patients = torch.tensor([0, 1, 2, 3, 4, 0, 1, 1, 1, 1, 5, 6, 7, 8, 9])
    splits = of_sizes((20, 20, 20), (5, 5, 5))
    (said,) = too_few(replace(splits, test=replace(splits.test, metadata={"group": patients})))
    assert ": b (2)" in said
