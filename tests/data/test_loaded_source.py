"""Splits written for others: the same images come back, none is on two sides, and the thesis's sets are nested."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data import (
    THESIS_SETS,
    DataOptions,
    FolderData,
    NamedData,
    NpzData,
    Splits,
    load_data,
    save_split,
    thesis_set,
)
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


def test_the_split_of_a_split(cells: Path, packed: Path, tmp_path: Path):
    for name, options in (("folder", folder(cells)), ("npz", npz(packed))):
        first, second = tmp_path / f"{name}1.csv", tmp_path / f"{name}2.csv"
        save_split(replace(options, per_class=8, split_seed=3), first)
        smaller = replace(options, split_file=first, per_class=2, first_classes=2)
        save_split(smaller, second)
        assert_same(load_data(smaller), load_data(replace(options, split_file=second)))
        assert len(rows(second)) == 60


def test_a_file_that_does_not_fit_its_source(cells: Path, packed: Path, tmp_path: Path):
    save_split(npz(packed), tmp_path / "index.csv")
    save_split(folder(cells), tmp_path / "file.csv")
    text = (tmp_path / "index.csv").read_text()
    wrong = tmp_path / "wrong.csv"
    for changed, message in [
        ((tmp_path / "file.csv").read_text(), "index, class and split"),
        (text + "60,0,unused\n", "line 62"),
        (text[: text.rindex("59,")], "lacks 1, e.g. 59"),
        (text.replace("\n1,1,", "\n1,2,"), "line 3"),
        (text + "1,1,train\n", "line 62"),
        (text.replace("index,", "number,"), "number"),
    ]:
        wrong.write_text(changed)
        with pytest.raises(CapsellaError, match=message):
            load_data(npz(packed, split_file=wrong))
    wrong.write_text((tmp_path / "file.csv").read_text().replace(",train", ",unused").replace(",test", ",unused"))
    with pytest.raises(CapsellaError):
        load_data(folder(cells, split_file=wrong))
    wrong.write_text(wrong.read_text().replace(",validation", ",unused"))
    with pytest.raises(CapsellaError, match=r"wrong\.csv"):
        load_data(folder(cells, split_file=wrong))


def test_the_first_classes_keep_their_splits(cells: Path):
    whole, two = load_data(folder(cells, per_class=5)), load_data(folder(cells, per_class=5, first_classes=2))
    assert two.classes == CLASSES[:2]
    for images, fewer in zip(whole.named().values(), two.named().values(), strict=True):
        assert fewer.files == tuple(file for file in images.files or () if not file.startswith("smudge"))
    with pytest.raises(ValueError, match="first_classes"):
        load_data(folder(cells, first_classes=4))


def test_the_thesis_sets_of_digits():
    sets = {name: load_data(thesis_set(name, NamedData())) for name in THESIS_SETS}
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

    def test_copies_are_in_one_fold(self, cells: Path):
        (cells / "blast" / "copy.png").write_bytes((cells / "blast" / "07.png").read_bytes())
        for fold in range(3):
            files = load_data(folder(cells, folds=3, fold=fold)).test.files or ()
            assert ("blast/copy.png" in files) == ("blast/07.png" in files)

    def test_test_images_that_are_set_apart_are_in_no_fold(self):
        whole = load_data(NamedData())
        folds = [load_data(NamedData(folds=3, fold=fold)) for fold in range(3)]
        assert sum(len(splits.test) for splits in folds) == len(whole.train) + len(whole.validation)
        apart = {image.numpy().tobytes() for image in whole.test.images}
        seen = {
            image.numpy().tobytes() for splits in folds for part in splits.named().values() for image in part.images
        }
        assert not apart & seen

    def test_folds_that_cannot_be(self, packed: Path, cells: Path):
        with pytest.raises(CapsellaError, match="fold"):
            load_data(npz(packed, folds=3))
        with pytest.raises(CapsellaError, match="'blast'"):
            load_data(folder(cells, folds=21, fold=0))


def test_a_listed_file_that_is_gone_is_named_beside_one_that_is_broken(cells: Path, tmp_path: Path):
    save_split(folder(cells), tmp_path / "file.csv")
    asked = folder(cells, split_file=tmp_path / "file.csv", skip_broken=True)
    (cells / "blast" / "03.png").write_bytes(b"")
    load_data(asked)
    (cells / "smudge" / "new.png").write_bytes(b"")
    (cells / "monocyte" / "07.png").unlink()
    with pytest.raises(CapsellaError, match=r"monocyte/07\.png"):
        load_data(asked)
