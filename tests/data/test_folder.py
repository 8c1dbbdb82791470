"""One's own images: folders, split files, groups, and everything that can be wrong with them."""

import importlib
import os
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data import DataOptions, FolderData, ImageSet, describe, folder_files, load_data
from capsella.errors import CapsellaError, CapsellaWarning

from .split_files import write_split_file


def save(path: Path, value: int, shape: tuple[int, ...] = (6, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, dtype=np.uint8)).save(path)


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """Two classes of 20 images each from 10 patients; an image's grey value tells its class and number."""
    folder = tmp_path / "cells"
    for label, name in enumerate(("monocyte", "basophil")):
        for number in range(20):
            save(folder / name / f"patient{number // 2}_{number}.png", 100 * label + number)
    return folder


def options(folder: Path, **changes: object) -> DataOptions:
    return FolderData(folder, **changes)  # type: ignore[arg-type]


def values(images: ImageSet) -> list[int]:
    return images.images[:, 0, 0, 0].tolist()


def test_sub_folders_are_the_classes(cells: Path):
    splits = load_data(options(cells))
    assert (splits.name, splits.classes, splits.image_size) == ("cells", ("basophil", "monocyte"), (6, 6))
    assert [tuple(row)[1:] for row in describe(splits)] == [(14, 2, 4), (14, 2, 4)]
    every = [value for images in splits.named().values() for value in values(images)]
    assert sorted(every) == [*range(20), *range(100, 120)]
    for images in splits.named().values():
        assert images.files is not None
        for value, label, file in zip(values(images), images.labels.tolist(), images.files, strict=True):
            assert (value >= 100) == (splits.classes[label] == "basophil") == file.startswith("basophil/")
            assert file.endswith(f"_{value % 100}.png")


def test_formats_sub_folders_and_what_is_passed_over(cells: Path):
    for name in ("a.bmp", "b.TIF", "c.jpeg", "deep/er/d.JPG"):
        save(cells / "monocyte" / name, 50)
    for name in (".hidden.png", ".thumbnails/e.png"):
        save(cells / "monocyte" / name, 51)
    save(cells / ".git/f.png", 52)
    (cells / "monocyte/notes.txt").write_text("not an image")
    splits = load_data(options(cells))
    every = [value for images in splits.named().values() for value in values(images)]
    assert every.count(50) == 4
    assert len(every) == 44


def test_what_is_passed_over_is_said_in_one_line(cells: Path):
    for name in ("a.heic", "b.heic", ".hidden.svg"):
        (cells / "monocyte" / name).write_text("x")
    (cells / "basophil/gone.png").symlink_to("nowhere.png")
    os.mkfifo(cells / "basophil/pipe.png")
    for name in ("top.png", "loose.tif"):
        save(cells / name, 1)
    (cells / "labels.csv").write_text("beside the class folders")
    (note,) = load_data(options(cells)).notes
    for part in ("7 files", "2 beside the class folders", "2 .heic", "1 .csv", "2 link or pipe"):
        assert part in note
    assert note.endswith("(labels.csv, loose.tif, top.png, …)")


def test_links_are_followed_but_not_in_circles(cells: Path, tmp_path: Path):
    save(tmp_path / "elsewhere/more.png", 77)
    (cells / "monocyte/linked").symlink_to(tmp_path / "elsewhere")
    (cells / "monocyte/up").symlink_to(cells)
    (cells / "monocyte/self").symlink_to(cells / "monocyte")
    (cells / "monocyte/across").symlink_to(tmp_path / "across")
    (tmp_path / "across").mkdir()
    (tmp_path / "across/back").symlink_to(cells / "monocyte")
    (cells / "loop").symlink_to(cells)
    (cells / "basophil/gone.png").symlink_to(cells / "nothing")
    splits = load_data(options(cells))
    assert splits.classes == ("basophil", "monocyte")
    every = [value for images in splits.named().values() for value in values(images)]
    assert sorted(every) == [*range(20), 77, *range(100, 120)]


def test_patients_stay_on_one_side(cells: Path):
    splits = load_data(options(cells, group="(patient[0-9]+)_"))
    assert splits.notes == ("10 groups (--group), the largest of 4 images",)
    patients = []
    for images in splits.named().values():
        assert images.files is not None
        patients.append({file.split("/")[1].split("_")[0] for file in images.files})
        assert set(images.labels.tolist()) == {0, 1}
    assert sum(map(len, patients)) == len(set.union(*patients)) == 10


def test_a_pattern_must_find_a_group_in_every_path(cells: Path):
    save(cells / "monocyte/nobody.png", 3)
    with pytest.raises(CapsellaError, match=r"monocyte/nobody\.png"):
        load_data(options(cells, group="(patient[0-9]+)_"))


def test_a_split_file_brings_a_split_back(cells: Path, tmp_path: Path):
    first = load_data(options(cells, split_seed=5))
    write_split_file(first, tmp_path / "split.csv")
    again = load_data(options(cells, split_seed=99, split_file=tmp_path / "split.csv"))
    for before, after in zip(first.named().values(), again.named().values(), strict=True):
        assert before.files == after.files
        assert torch.equal(before.images, after.images)
        assert torch.equal(before.labels, after.labels)


def test_validation_is_held_out_where_a_split_file_has_none(cells: Path, tmp_path: Path):
    rows = [
        f"{path.relative_to(cells)},{'test' if path.stem.endswith('9') else 'train'}" for path in cells.rglob("*.png")
    ]
    (tmp_path / "split.csv").write_text("\ufefffile,split\r\n" + "\r\n".join(rows).replace("/", "\\"), "utf-8")
    splits = load_data(options(cells, split_file=tmp_path / "split.csv"))
    assert [tuple(row)[1:] for row in describe(splits)] == [(16, 2, 2), (16, 2, 2)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("file,split", "name,set"), r"split\.csv"),
        (lambda text: text.replace(",test", ",tset"), "tset"),
        (lambda text: text + "monocyte/patient0_0.png,train\n", "line 42"),
        (lambda text: text + "monocyte/gone.png,train\n", "line 42"),
        (lambda text: "\n".join(text.splitlines()[:-3]), "lacks 3"),
        (lambda text: text.replace(",test", ",train"), "test split"),
        (lambda text: text.replace(",train", ",test"), "train split"),
        (lambda text: text.replace("\n", "\n\0"), "CSV|line 42"),
        (lambda text: "", r"split\.csv"),
    ],
)
def test_split_files_that_do_not_fit(cells: Path, tmp_path: Path, change, message: str):
    path = tmp_path / "split.csv"
    write_split_file(load_data(options(cells)), path)
    path.write_text(change(path.read_text()))
    with pytest.raises(CapsellaError, match=message):
        load_data(options(cells, split_file=path))


def test_a_split_file_must_not_tear_a_group(cells: Path, tmp_path: Path):
    write_split_file(load_data(options(cells)), tmp_path / "split.csv")
    with pytest.raises(CapsellaError):
        load_data(options(cells, split_file=tmp_path / "split.csv", group="(patient[0-9]+)_"))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_no_unicode_come_back_from_a_split_file(cells: Path, tmp_path: Path):
    for name in (b"\xe9.png", b"back\\slash.png"):
        save(cells / "monocyte" / os.fsdecode(name), 60 + len(name))
    splits = load_data(options(cells))
    write_split_file(splits, tmp_path / "split.csv")
    assert load_data(options(cells, split_file=tmp_path / "split.csv")).train.files == splits.train.files


@pytest.mark.parametrize(("train", "test"), [("Train", "TEST"), ("Training", "testing")])
def test_names_of_splits_are_splits_and_beside_classes_an_error(train: str, test: str, tmp_path: Path):
    for split in (train, test):
        for name in ("a", "b"):
            for number in range(8):
                save(tmp_path / split / name / f"{number}.png", 10 * len(split) + number)
    splits = load_data(options(tmp_path, duplicates="ignore"))
    assert splits.classes == ("a", "b")
    assert all(file.startswith(f"{test}/") for file in splits.test.files or ())
    save(tmp_path / "unlabelled" / "0.png", 1)
    with pytest.raises(CapsellaError):
        load_data(options(tmp_path))


def test_a_folder_that_is_split_already(tmp_path: Path):
    for split, number in (("train", 10), ("val", 2), ("test", 3)):
        for name in ("a", "b"):
            for i in range(number):
                save(tmp_path / split / name / f"{i}.png", 10 * (2 * len(split) + (name == "a")) + i)
    splits = load_data(options(tmp_path))
    assert [tuple(row) for row in describe(splits)] == [("a", 10, 2, 3), ("b", 10, 2, 3)]
    assert splits.test.files == tuple(f"test/{name}/{i}.png" for name in "ab" for i in range(3))
    files = [file for images in splits.named().values() for file in images.files or ()]
    rows = [f"{file},{'test' if file.endswith('/1.png') else 'train'}" for file in files]
    (tmp_path / "split.csv").write_text("\n".join(["file,split", *rows]))
    other = load_data(options(tmp_path, split_file=tmp_path / "split.csv"))
    assert other.test.files == tuple(f"{split}/{name}/1.png" for split in ("test", "train", "val") for name in "ab")


def test_a_broken_image_is_named_or_skipped_and_listed(cells: Path):
    broken = cells / "monocyte/patient3_6.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(CapsellaError, match=r"monocyte/patient3_6\.png"):
        load_data(options(cells))
    splits = load_data(options(cells, skip_broken=True))
    assert len(splits.broken) == 1
    assert str(broken) in splits.broken[0]
    every = [value for images in splits.named().values() for value in values(images)]
    assert sorted(every) == [*range(6), *range(7, 20), *range(100, 120)]


def test_folders_that_cannot_be_classes(tmp_path: Path):
    with pytest.raises(CapsellaError):
        load_data(options(tmp_path / "gone"))
    save(tmp_path / "loose.png", 1)
    with pytest.raises(CapsellaError):
        load_data(options(tmp_path))
    (tmp_path / "loose.png").unlink()
    save(tmp_path / "only/a.png", 1)
    with pytest.raises(CapsellaError, match="'only'"):
        load_data(options(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.heic").write_bytes(b"heic")
    with pytest.raises(CapsellaError):
        load_data(options(tmp_path))


def test_mixed_channels_and_sizes_name_examples(cells: Path):
    save(cells / "monocyte/colour.png", 9, (6, 6, 3))
    with pytest.raises(CapsellaError, match=r"colour\.png"):
        load_data(options(cells))
    assert load_data(options(cells, channels=1)).channels == 1
    assert load_data(options(cells, channels=3)).channels == 3
    save(cells / "monocyte/wide.png", 9, (6, 12))
    with pytest.raises(
        CapsellaError,
        match=r"wide\.png",
    ):
        load_data(options(cells, channels=1))
    assert load_data(options(cells, channels=1, size=5)).image_size == (5, 5)


def test_what_reading_changes_in_some_files_is_said(cells: Path):
    for number in range(2):
        Image.new("RGBA", (6, 6), (40 + number, 90, 160, 200)).save(cells / "monocyte" / f"half{number}.png")
    notes = load_data(options(cells, channels=1)).notes
    for word in ("transparency", "colour"):
        assert any(note.startswith("2 files (half0.png, …)") and word in note for note in notes)
    assert not any("colour" in note for note in load_data(options(cells, channels=3)).notes)
    save(cells / "monocyte/wide.png", 9, (6, 12))
    (note,) = [note for note in load_data(options(cells, channels=1, size=5)).notes if "square" in note]
    assert "1 file (wide.png)" in note
    assert "50%" in load_data(options(cells, channels=1, size=5, fit="crop")).unseen[0]


def test_classes_that_are_one_class_for_a_person_are_warned_of(cells: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("capsella.errors._warned", set())
    for number, name in enumerate(("Monocyte", "monocyte ", unicodedata.normalize("NFC", "café"), "cafe\u0301")):
        for k in range(8):
            save(cells / name / f"{k}.png", 120 + 10 * number + k)
    with pytest.warns(CapsellaWarning, match="'Monocyte', 'monocyte', 'monocyte '") as caught:
        load_data(options(cells))
    assert "caf" in str(caught[0].message)


def test_an_image_that_was_replaced_under_its_name_changes_the_digest(cells: Path):
    before = load_data(options(cells)).digests()
    replaced = next(file for file in load_data(options(cells)).train.files or ())
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (6, 6), dtype=np.uint8)).save(cells / replaced)
    after = load_data(options(cells)).digests()
    assert before["train"] != after["train"]
    assert before["validation"] == after["validation"]


def test_a_folder_is_listed_once_and_its_images_decoded_once(cells: Path, monkeypatch: pytest.MonkeyPatch):
    calls = {"listed": 0, "decoded": 0}

    def counted(module: str, name: str, key: str) -> None:
        original = getattr(importlib.import_module(module), name)

        def count(*arguments: object, **named: object) -> object:
            calls[key] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(f"{module}.{name}", count)

    counted("capsella.data.loaded_source", "list_folder", "listed")
    counted("capsella.data.folder", "open_image", "decoded")
    splits = load_data(options(cells, per_class=5))
    assert calls == {"listed": 1, "decoded": 40}
    assert splits.table is not None  # which is all that split.csv needs
    assert sorted(splits.table.rows) == sorted(folder_files(options(cells)))
    assert sum(row.split == "train" for row in splits.table.rows.values()) == 28
