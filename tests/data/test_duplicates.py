"""The same image twice: found by its pixels or by its look, and kept on one side, or refused with names."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy
from PIL import Image

from capsella.data import FolderData, NpzData, load_data
from capsella.data.duplicates import RADIUS, fingerprint, similar_pairs, similar_sets
from capsella.data.image_file import ImageData
from capsella.errors import CapsellaError

SIDE = 64


def picture(seed: int, side: int = SIDE) -> Image.Image:
    """Something with a look of its own: blobs of all sizes."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (33, 33, 3)).astype(np.uint8))
    return coarse.resize((side, side), Image.Resampling.BICUBIC)


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """Two classes of 15 images."""
    for label, name in enumerate(("a", "b")):
        (tmp_path / "cells" / name).mkdir(parents=True)
        for number in range(15):
            picture(100 * label + number).save(tmp_path / "cells" / name / f"{number:02}.png")
    return tmp_path / "cells"


@pytest.fixture
def said(monkeypatch):
    """The warnings of loading images, without the name of the folder."""
    monkeypatch.setattr("capsella.errors._warned", set())

    def load(**fields):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            splits = load_data((NpzData if fields.pop("name", "") == "npz" else FolderData)(**fields))
        return splits, [str(one.message).partition(": ")[2] for one in caught]

    return load


def side_of(splits, *files):
    """The splits in which these files are."""
    return {split for split, images in splits.named().items() if set(files) & set(images.files)}


@pytest.mark.parametrize("seed", range(3))
def test_copies_stay_on_one_side(cells, said, seed):
    """Drawn one by one, copies would be apart with most seeds."""
    for number in range(4):
        picture(number).save(cells / "a" / f"copy{number}.bmp")
    splits, warned = said(path=cells, split_seed=seed)
    assert warned == []
    assert splits.notes[-1].startswith("4 images with copies, up to 2 of one, e.g. a/00.png and a/copy0.bmp")
    for number in range(4):
        assert len(side_of(splits, f"a/{number:02}.png", f"a/copy{number}.bmp")) == 1


@pytest.mark.parametrize("seed", range(3))
def test_copies_that_were_saved_anew_stay_on_one_side_too(cells, said, seed):
    picture(1).save(cells / "a" / "small.jpg", quality=75)
    picture(2).resize((SIDE // 2, SIDE // 2)).save(cells / "a" / "half.png")
    splits, warned = said(path=cells, split_seed=seed, size=32)
    assert warned == []
    assert "2 images with copies" in splits.notes[-1]
    assert len(side_of(splits, "a/01.png", "a/small.jpg")) == len(side_of(splits, "a/02.png", "a/half.png")) == 1


def test_they_join_the_groups_that_there_are(cells, said):
    """Patients of five images; one image of patient 0 is also patient 2's, so all ten stay together."""
    for name in ("a", "b"):
        for number in range(15):
            (cells / name / f"{number:02}.png").rename(cells / name / f"p{number // 5}{name}_{number:02}.png")
    picture(0).save(cells / "a" / "p2a_copy.png")
    with pytest.raises(CapsellaError, match="'a'"):
        said(path=cells, group="(p[0-9][ab])")
    picture(55).save(cells / "a" / "p7a_new.png")
    splits, _ = said(path=cells, group="(p[0-9][ab])")
    assert (
        len(side_of(splits, *(f for part in splits.named().values() for f in part.files if f[2:5] in ("p0a", "p2a"))))
        == 1
    )


def test_in_two_classes(cells, said):
    picture(3).save(cells / "b" / "wrong.png")
    with pytest.raises(CapsellaError, match=r"a/03\.png and b/wrong\.png"):
        load_data(FolderData(cells))
    splits, warned = said(path=cells, duplicates="keep")
    assert warned[0] == "the same image is in two classes: a/03.png and b/wrong.png"
    assert len(side_of(splits, "a/03.png", "b/wrong.png")) == 1
    assert said(path=cells, duplicates="ignore")[1] == []


@pytest.mark.parametrize("by", ["folders", "file"])
def test_in_two_parts_of_a_split_of_ones_own(cells, said, tmp_path, by):
    picture(3).save(cells / "a" / "again.png")
    given = {"path": cells}
    if by == "file":
        files = sorted(path.relative_to(cells).as_posix() for path in cells.rglob("*.png"))
        rows = [f"{file},{'test' if file[2:4] in ('ag', '14') else 'train'}" for file in files]
        (tmp_path / "split.csv").write_text("\n".join(["file,split", *rows]))
        given["split_file"] = tmp_path / "split.csv"
    else:
        for name in ("a", "b"):
            (cells / "train").mkdir(exist_ok=True)
            (cells / name).rename(cells / "train" / name)
            (cells / "test" / name).mkdir(parents=True)
            picture(777 + ord(name)).save(cells / "test" / name / "new.png")
        (cells / "train/a/again.png").rename(cells / "test/a/again.png")
    with pytest.raises(CapsellaError, match=r"a/03\.png"):
        load_data(FolderData(**given))
    splits, warned = said(**given, duplicates="keep")
    assert warned[0].startswith("the same image is in two of train, test: ")
    assert len(side_of(splits, *(f for part in splits.named().values() for f in part.files if "again" in f))) == 1


def test_images_in_an_array(tmp_path, said):
    pixels = np.stack([np.asarray(picture(number)) for number in range(20)])
    labels = np.arange(20) % 2
    pixels[7] = pixels[3]
    np.savez(tmp_path / "cells.npz", images=pixels, labels=labels)
    splits, warned = said(name="npz", path=tmp_path / "cells.npz", size=16)
    assert warned == []
    assert "image 3 (1) and image 7 (1)" in splits.notes[-1]
    pixels[8] = pixels[3]
    np.savez(tmp_path / "wrong.npz", images=pixels, labels=labels)
    with pytest.raises(CapsellaError):
        load_data(NpzData(tmp_path / "wrong.npz"))


def test_deep_grey_images_are_told_apart():
    """12 bits in 16, which Pillow would clip to white."""
    random = np.random.default_rng(0)
    deep = [random.integers(300, 4000, (SIDE, SIDE)).astype(np.uint16) for _ in range(3)]
    words = np.stack([fingerprint(ImageData(None, values))[1:] for values in deep])
    assert similar_sets(words).tolist() == [0, 1, 2]


def test_the_search_agrees_with_counting_bits(monkeypatch):
    monkeypatch.setattr("capsella.data.duplicates._BLOCK", 7)
    random = np.random.default_rng(0)
    bits = np.repeat(random.integers(0, 2, (5, 256)), 6, axis=0)
    for row in bits:
        row[random.permutation(256)[: random.integers(0, 9)]] ^= 1
    words = np.packbits(bits.astype(np.uint8), axis=1).view(np.int64)
    apart = (bits[:, None] != bits[None]).sum(2)
    expected = [[i, j] for i in range(30) for j in range(i + 1, 30) if apart[i, j] <= RADIUS]
    assert sorted(np.concatenate([*similar_pairs(words)]).tolist()) == expected
    assert 0 < len(expected) < 75
    graph = scipy.sparse.coo_array((np.ones(len(expected)), np.transpose(expected)), shape=(30, 30))
    assert np.array_equal(similar_sets(words), scipy.sparse.csgraph.connected_components(graph, directed=False)[1])
