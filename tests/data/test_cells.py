"""The Peripheral Blood Cell set: as one packed file, and as its authors publish it, with the same splits."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsella.data import NamedData, data_root, load_data
from capsella.data.sources import cells

CODES = tuple(cells._CLASS_OF)


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Six images of each code, two in each split, in the folders of the archive, and one image without a split."""
    splits = {f"{code}_{number}": ("train", "validation", "test")[number % 3] for code in CODES for number in range(6)}
    for name in (*splits, "BA_999999"):
        code = name.partition("_")[0]
        path = tmp_path / cells._PBC_FOLDER / cells._CLASS_OF[code] / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (36, 36), (CODES.index(code) * 15, len(name), 90)).save(path)
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    monkeypatch.setattr(cells, "pbc_splits", lambda: splits)
    return splits


@pytest.mark.parametrize(("name", "classes"), [("pbc", 8), ("pbc-11", 11)])
def test_the_original_folder_is_read_as_it_is(few: dict[str, str], name: str, classes: int):
    splits = load_data(NamedData(name, size=16))
    assert (splits.name, len(splits.classes)) == (name, classes)
    for split, images in splits.named().items():
        assert {few[Path(file).stem] for file in images.files or ()} == {split}
        assert len(images) == 2 * (13 if classes == 8 else 11)
    assert any("1 images" in note for note in splits.notes)


@pytest.mark.skipif(not (data_root() / cells._PBC).is_file(), reason="the packed file is not here")
def test_the_list_of_splits_is_that_of_the_packed_file():
    with np.load(data_root() / cells._PBC) as packed:
        names = [str(name).removesuffix(".jpg") for name in packed["name"]]
        splits = np.array(["train", "validation", "test"])[packed["split"]].tolist()
        codes, labels = packed["code_names"][packed["code"]], packed["classes"][packed["label"]]
    assert cells.pbc_splits() == dict(zip(names, splits, strict=True))
    assert [cells._CLASS_OF[code] for code in codes.tolist()] == labels.tolist()
