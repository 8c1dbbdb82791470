"""Groups of images from a table of files and groups."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsella.data import FolderData, NpzData, load_data
from capsella.data.splits import read_group_table
from capsella.errors import CapsellaError


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """Two classes of 20 images of 10 patients."""
    for label, name in enumerate("ab"):
        (tmp_path / "cells" / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.full((6, 6), 100 * label + number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "cells" / name / f"{name}{number}.png")
    return tmp_path / "cells"


def rows(cells: Path, *, by_name: bool = False) -> list[tuple[str, str]]:
    files = sorted(cells.rglob("*.png"))
    return [
        (path.name if by_name else path.relative_to(cells).as_posix(), f"P{int(path.stem[1:]) // 2}") for path in files
    ]


@pytest.mark.parametrize("form", ["comma", "semicolon", "tab", "names", "utf-16"])
def test_tables_as_they_come(cells: Path, tmp_path: Path, form: str):
    separator = {"semicolon": ";", "tab": "\t"}.get(form, ",")
    lines = [separator.join(row) for row in (("File", "Patient"), *rows(cells, by_name=form == "names"))]
    text = "\r\n".join(lines) + "\r\n"
    table = tmp_path / "patients.csv"
    table.write_bytes(text.replace("/", "\\").encode("utf-16" if form == "utf-16" else "utf-8-sig"))
    splits = load_data(FolderData(cells, group=str(table), duplicates="ignore"))
    assert splits.notes == ("10 groups (--group), the largest of 4 images",)
    patients = [{int(Path(file).stem[1:]) // 2 for file in images.files or ()} for images in splits.named().values()]
    assert sum(map(len, patients)) == len(set.union(*patients)) == 10


def test_missing_and_unknown_files_are_counted(cells: Path, tmp_path: Path):
    table = tmp_path / "patients.csv"
    lines = [",".join(row) for row in rows(cells)[3:]]
    table.write_text("\n".join(["file,group", *lines, "a/gone.png,P1"]))
    with pytest.raises(CapsellaError, match=r"3 of 40 images not listed.*1 row for no image"):
        load_data(FolderData(cells, group=str(table), duplicates="ignore"))


def test_files_in_an_npz_have_groups_too(cells: Path, tmp_path: Path):
    table = tmp_path / "patients.tsv"
    table.write_text("\n".join(["file\tgroup", *("\t".join(row) for row in rows(cells))]))
    images = np.stack([np.asarray(Image.open(cells / file)) for file, _ in rows(cells)])
    names = np.array([file for file, _ in rows(cells)])
    np.savez(tmp_path / "cells.npz", images=images, labels=np.repeat([0, 1], 20), name=names)
    splits = load_data(NpzData(tmp_path / "cells.npz", group=str(table), duplicates="ignore"))
    groups = [set(images.metadata["group"].tolist()) for images in splits.named().values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 10


@pytest.mark.parametrize(
    "text", ["", "name,group\na.png,1\n", "file,group\na.png,1\na.png,2\n", "file,group\na.png,\n"]
)
def test_other_tables_are_refused(tmp_path: Path, text: str):
    (tmp_path / "patients.csv").write_text(text)
    with pytest.raises(CapsellaError, match=r"patients\.csv"):
        read_group_table(tmp_path / "patients.csv")
