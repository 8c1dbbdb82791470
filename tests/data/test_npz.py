"""The layouts of .npz files, MedMNIST's and the cells' sets among them."""

import dataclasses
import struct
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data import DataOptions, NamedData, NpzData, load_data, npz
from capsella.data.npz import load_arrays
from capsella.errors import ArgumentError, CapsellaError

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 6, 8, 3), dtype=np.uint8)
LABELS = np.arange(30) % 3


def write(path: Path, **arrays: object) -> DataOptions:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return NpzData(path)


def join(pictures: np.ndarray) -> dict[str, np.ndarray]:
    files = []
    for picture in pictures:
        file = BytesIO()
        Image.fromarray(picture).save(file, "PNG")
        files.append(file.getvalue())
    return {
        "image": np.frombuffer(b"".join(files), dtype=np.uint8),
        "image_offset": np.cumsum([0, *map(len, files)]),
    }


def everything(options: DataOptions) -> torch.Tensor:
    splits = load_data(options)
    pixels = torch.cat([images.images for images in splits.named().values()])
    return pixels.permute(0, 2, 3, 1).flatten(1).sort(dim=0).values


@pytest.mark.parametrize("layout", ["n h w c", "n c h w", "joined", "labels n 1"])
def test_every_layout_gives_the_same_pixels(tmp_path: Path, layout: str):
    arrays: dict[str, object] = {"images": PIXELS, "labels": LABELS}
    if layout == "n c h w":
        arrays["images"] = PIXELS.transpose(0, 3, 1, 2)
    elif layout == "joined":
        arrays = {**join(PIXELS), "label": LABELS.astype(np.uint8)}
    elif layout == "labels n 1":
        arrays["labels"] = LABELS[:, None]
    expected = torch.from_numpy(PIXELS).flatten(1).sort(dim=0).values
    assert torch.equal(everything(write(tmp_path / "a.npz", **arrays)), expected)


def test_medmnist_keys(tmp_path: Path):
    parts = {"train": slice(0, 18), "val": slice(18, 24), "test": slice(24, 30)}
    arrays = {f"{split}_images": PIXELS[part] for split, part in parts.items()}
    arrays |= {f"{split}_labels": LABELS[part, None] for split, part in parts.items()}
    options = write(tmp_path / "a.npz", **arrays)
    splits = load_data(options)
    for name, images in zip(("train", "val", "test"), splits.named().values(), strict=True):
        assert np.array_equal(images.images.permute(0, 2, 3, 1).numpy(), PIXELS[parts[name]])
        assert images.labels.tolist() == LABELS[parts[name]].tolist()
    with pytest.raises(ValueError, match="group"):
        load_data(NpzData(options.path, group="photo"))
    del arrays["test_images"], arrays["test_labels"]
    with pytest.raises(CapsellaError):
        load_data(write(tmp_path / "b.npz", **arrays))


def test_split_codes_file_names_and_metadata(tmp_path: Path):
    codes = np.array([0] * 15 + [2] * 6 + [1] * 6 + [3] * 3)
    names = np.array([f"cell{i}.png" for i in range(30)])
    arrays = {**join(PIXELS), "label": LABELS, "split": codes, "name": names, "age": np.arange(30, dtype=np.int16)}
    splits = load_data(write(tmp_path / "a.npz", split_names=["train", "val", "test", "spare"], **arrays))
    assert splits.train.files == tuple(names[:15])
    assert splits.test.metadata["age"].tolist() == [15, 16, 17, 18, 19, 20]
    assert np.array_equal(splits.validation.images.permute(0, 2, 3, 1).numpy(), PIXELS[21:27])
    arrays["split"] = codes + 1
    with pytest.raises(CapsellaError, match="'train'"):
        load_data(write(tmp_path / "b.npz", **arrays))


def test_another_array_as_the_class(tmp_path: Path):
    codes, names = np.arange(30) // 8, np.array(["w", "x", "y", "z"])
    data = write(
        tmp_path / "a.npz",
        images=PIXELS,
        labels=LABELS,
        classes=np.array(["a", "b", "c"]),
        code=codes,
        code_names=names,
    )
    splits = load_data(data.replace(label="code"))
    assert splits.classes == tuple(names)
    assert sum(images.labels.bincount(minlength=4) for images in splits.named().values()).tolist() == [8, 8, 8, 6]
    with pytest.raises(ArgumentError):
        load_data(data.replace(label="cod"))


def test_images_of_one_group_stay_together(tmp_path: Path):
    slide = np.arange(30) // 3
    options = write(tmp_path / "a.npz", images=PIXELS, labels=LABELS, slide=slide)
    splits = load_data(NpzData(options.path, group="slide"))
    sides = [set(images.metadata["slide"].tolist()) for images in splits.named().values()]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 10
    with pytest.raises(ValueError, match="group"):
        load_data(NpzData(options.path, group="photo"))


def test_a_broken_image_is_named_or_skipped_and_listed(tmp_path: Path):
    joined = join(PIXELS)
    joined["image"] = joined["image"].copy()
    joined["image"][joined["image_offset"][7] : joined["image_offset"][8]] = 0
    options = write(tmp_path / "a.npz", label=LABELS, number=np.arange(30), **joined)
    with pytest.raises(CapsellaError, match=r"a\.npz"):
        load_data(options)
    splits = load_data(NpzData(options.path, skip_broken=True))
    assert len(splits.broken) == 1
    assert "image 7" in splits.broken[0]
    for images in splits.named().values():
        numbers = images.metadata["number"]
        assert 7 not in numbers
        assert np.array_equal(images.images.permute(0, 2, 3, 1).numpy(), PIXELS[numbers])
        assert images.labels.tolist() == LABELS[numbers].tolist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": PIXELS}, "must hold an array labels or label or category, got images"),
        ({"images": PIXELS.astype(np.float32), "labels": LABELS}, "images must be uint8, .* got float32"),
        ({"images": PIXELS, "labels": LABELS[:9]}, "as many images as labels, got 30 images and 9 labels"),
        ({"images": PIXELS, "labels": LABELS - 1}, "labels: must be from 0 to 1, got -1 for image 0"),
        ({"images": PIXELS, "labels": LABELS, "split": LABELS[:5]}, "as many split codes as labels, got 5"),
        ({"images": PIXELS, "labels": LABELS + 10**9}, "labels must count the classes from 0, got 1000000002"),
        ({"images": PIXELS, "labels": np.array([{}] * 30)}, "a .npz file without pickled objects"),
        ({"image": PIXELS.ravel(), "image_offset": np.arange(31)[::-1], "label": LABELS}, "`image_offset` must rise"),
        ({"images": PIXELS[:, :0], "labels": LABELS}, r"\(30, 0, 8, 3\)"),
    ],
)
def test_what_does_not_fit_is_an_error(tmp_path: Path, arrays: dict[str, object], message: str):
    with pytest.raises(CapsellaError, match=message):
        load_data(write(tmp_path / "a.npz", **arrays))


def test_files_that_are_no_npz(tmp_path: Path):
    path = write(tmp_path / "a.npz", images=PIXELS, labels=LABELS).path
    assert path is not None
    with pytest.raises(CapsellaError, match=r"gone\.npz"):
        load_data(NpzData(tmp_path / "gone.npz"))
    np.save(tmp_path / "one.npy", PIXELS)
    with pytest.raises(CapsellaError, match=r"one\.npy"):
        load_data(NpzData(tmp_path / "one.npy"))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(CapsellaError, match=r"a\.npz"):
        load_data(NpzData(path))


def test_medmnist_is_read_with_its_class_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    (tmp_path / "medmnist").mkdir()
    pixels = np.zeros((8, 64, 64, 3), dtype=np.uint8)
    arrays = {f"{split}_images": pixels for split in ("train", "val", "test")}
    arrays |= {f"{split}_labels": np.arange(8)[:, None] for split in ("train", "val", "test")}
    np.savez(tmp_path / "medmnist/bloodmnist_64.npz", **arrays)  # type: ignore[arg-type]
    splits = load_data(NamedData("bloodmnist", size=40))
    assert (splits.name, splits.image_size, splits.classes[2]) == ("bloodmnist", (40, 40), "erythroblast")


@pytest.mark.parametrize("name", ["group", "domain", "toy", "content"])
def test_an_array_parts_nothing_unless_it_is_named(tmp_path, name):
    options = write(tmp_path / "arm.npz", images=PIXELS, labels=LABELS, **{name: np.arange(30) // 8})
    assert name == "content" or name not in load_data(options).train.metadata
    plain = load_data(write(tmp_path / "plain.npz", images=PIXELS, labels=LABELS)).digests()
    assert {split: text.split()[0] for split, text in load_data(options).digests().items()} == {
        split: text.split()[0] for split, text in plain.items()
    }
    named = load_data(dataclasses.replace(options, group=name))
    assert "group" in named.train.metadata


def packed(path, header, content=b""):
    labels = BytesIO()
    np.save(labels, np.zeros(3, np.int64))
    text = header.encode() + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content)
        archive.writestr("labels.npy", labels.getvalue())
    return path


def test_a_shape_that_no_memory_holds(tmp_path):
    path = packed(tmp_path / "a.npz", "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 17, 17), }")
    with pytest.raises(CapsellaError):
        load_arrays(path)


def test_zeros_are_not_unpacked_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "MAX_BYTES", 100_000)
    few = "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 300, 300), }"
    path = packed(tmp_path / "a.npz", few, bytes(270_000))
    with pytest.raises(CapsellaError):
        load_arrays(path)
    path = packed(tmp_path / "b.npz", few, np.random.default_rng(0).bytes(270_000))
    assert load_arrays(path)["images"].shape == (3, 300, 300)
