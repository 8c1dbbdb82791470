"""One's own images: folders, split files, groups, and everything that can be wrong with them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsella.data import (
    DataOptions,
    FolderData,
    FolderSummary,
    ImageSet,
    Splits,
    describe,
    inspect_folder,
    load_data,
)
from capsella.errors import CapsellaError
from capsella.files import write_csv


def save(path: Path, value: int, shape: tuple[int, ...] = (6, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, dtype=np.uint8)).save(path)


def write_split_file(splits: Splits, path: Path) -> None:
    rows = [(file, split) for split, images in splits.named().items() for file in images.files or ()]
    write_csv(path, ("file", "split"), rows)


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """Two classes of 20 images each from 10 patients; an image's grey value tells its class and number."""
    root = tmp_path / "cells"
    for label, name in enumerate(("monocyte", "basophil")):
        for number in range(20):
            save(root / name / f"patient{number // 2}_{number}.png", 100 * label + number)
    return root


def options(path: Path, **changes: object) -> DataOptions:
    return FolderData(path, **changes)  # type: ignore[arg-type]


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
    save(cells / "monocyte/nobody.png", 3)
    with pytest.raises(CapsellaError, match=r"monocyte/nobody\.png"):
        load_data(options(cells, group="(patient[0-9]+)_"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(",test", ",tset"), "tset"),
        (lambda text: text + "monocyte/patient0_0.png,train\n", "patient0_0.png again"),
        (lambda text: text + "monocyte/gone.png,train\n", "gone.png"),
        (lambda text: "\n".join(text.splitlines()[:-3]), "lacks 3"),
        (lambda text: text.replace(",test", ",train"), "test split"),
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


def test_a_folder_that_is_split_already(tmp_path: Path):
    for split, number in (("Train", 10), ("val", 2), ("test", 3)):
        for name in ("a", "b"):
            for i in range(number):
                save(tmp_path / split / name / f"{i}.png", 10 * (2 * len(split) + (name == "a")) + i)
    found = inspect_folder(tmp_path)
    assert (found.images, found.train, found.classes) == (30, 20, ("a", "b"))
    splits = load_data(options(tmp_path))
    assert [tuple(row) for row in describe(splits)] == [("a", 10, 2, 3), ("b", 10, 2, 3)]
    assert splits.test.files == tuple(f"test/{name}/{i}.png" for name in "ab" for i in range(3))
    files = [file for images in splits.named().values() for file in images.files or ()]
    rows = [f"{file},{'test' if file.endswith('/1.png') else 'train'}" for file in files]
    (tmp_path / "split.csv").write_text("\n".join(["file,split", *rows]))
    other = load_data(options(tmp_path, split_file=tmp_path / "split.csv"))
    assert other.test.files == tuple(f"{split}/{name}/1.png" for split in ("Train", "test", "val") for name in "ab")
    save(tmp_path / "unlabelled" / "0.png", 1)
    with pytest.raises(CapsellaError):
        load_data(options(tmp_path))


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
    with pytest.raises(CapsellaError, match=r"wide\.png"):
        load_data(options(cells, channels=1))
    assert load_data(options(cells, channels=1, size=5)).image_size == (5, 5)


def test_an_image_that_was_replaced_under_its_name_changes_the_digest(cells: Path):
    before = load_data(options(cells)).digests()
    replaced = next(file for file in load_data(options(cells)).train.files or ())
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (6, 6), dtype=np.uint8)).save(cells / replaced)
    after = load_data(options(cells)).digests()
    assert before["train"] != after["train"]
    assert before["validation"] == after["validation"]


def write(path, name, size, mode="RGB"):
    path.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(path / name)


def test_the_usual_size_counts_and_one_colour_image_makes_a_set_colour(tmp_path):
    for number in range(5):
        write(tmp_path / "a", f"{number}.png", (60, 40), "L")
    write(tmp_path / "b", "large.png", (600, 400), "L")
    write(tmp_path / "b", "grey16.png", (60, 40), "I;16")
    assert inspect_folder(tmp_path) == FolderSummary(
        tmp_path, 7, None, False, ("a", "b"), height=40, width=60, channels=1
    )
    write(tmp_path / "b", "colour.png", (60, 40))
    assert inspect_folder(tmp_path).channels == 3
