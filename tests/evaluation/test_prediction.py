import csv
import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from capsella.errors import CapsellaError
from capsella.evaluation import find_images, predict_files, write_csv
from capsella.models import ImageClassifier
from capsella.types import Output


class Darkness(ImageClassifier):
    """ "dark, plain" below a mean of one half, "light" above."""

    def __init__(self):
        super().__init__((4, 4), 1, ("dark, plain", "light"))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images, labels=None):
        mean = images.mean((1, 2, 3))
        return Output(self.scale * torch.stack([1 - mean, mean], 1))


def save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 6), value, np.uint8)).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    for name, value in (("b.png", 0), ("a.PNG", 255), ("deeper/c.bmp", 51), (".hidden.png", 9), (".trash/d.png", 9)):
        save(tmp_path / "images" / name, value)
    (tmp_path / "images" / "notes.txt").write_text("no image")
    return tmp_path / "images"


def test_folders_are_walked_sorted_without_hidden_and_other_files(folder):
    names = [path.relative_to(folder).as_posix() for path in find_images([folder])]
    assert names == ["a.PNG", "b.png", "deeper/c.bmp"]


def test_a_file_named_twice_is_taken_once_and_any_suffix_as_given(folder):
    odd = save(folder / "x.png", 1).rename(folder / "x.image")
    assert find_images([odd, folder / "b.png", folder]) == [
        odd, folder / "b.png", folder / "a.PNG", folder / "deeper/c.bmp"
    ]  # fmt: skip


def test_links_to_folders_are_not_followed(folder):
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    assert len(find_images([folder])) == 3


def test_missing_path_and_folder_without_images_are_errors(tmp_path):
    with pytest.raises(CapsellaError, match=r"nowhere\.png: there is no such file or folder"):
        find_images([tmp_path / "nowhere.png"])
    with pytest.raises(CapsellaError, match=r"the folder holds no image"):
        find_images([tmp_path])


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_files_are_classified_in_order(folder, batch_size):
    found = list(predict_files(Darkness(), [folder], batch_size=batch_size))
    assert [p.file.name for p in found] == ["a.PNG", "b.png", "c.bmp"]
    assert [p.class_name for p in found] == ["light", "dark, plain", "dark, plain"]
    torch.testing.assert_close(found[2].activations, torch.tensor([0.8, 0.2]))


def test_a_broken_file_is_named(folder):
    (folder / "b.png").write_bytes(b"no image at all")
    with pytest.raises(CapsellaError, match=r"b\.png"):
        list(predict_files(Darkness(), [folder]))


def test_broken_files_are_listed_where_asked(folder):
    (folder / "b.png").write_bytes(b"no image at all")
    broken = []
    found = list(predict_files(Darkness(), [folder], broken=broken))
    assert [p.file.name for p in found] == ["a.PNG", "c.bmp"]
    assert len(broken) == 1
    assert "b.png" in broken[0]


def test_nothing_but_broken_files_is_an_error(folder):
    for file in find_images([folder]):
        file.write_bytes(b"")
    with pytest.raises(CapsellaError, match="none of the 3 images could be read"):
        list(predict_files(Darkness(), [folder], batch_size=2, broken=[]))


def test_broken_weights_and_batch_size_zero_are_errors(folder):
    model = Darkness()
    model.scale.data.fill_(float("inf"))
    with pytest.raises(CapsellaError, match=r"a\.PNG: the model answers NaN or infinity"):
        list(predict_files(model, [folder]))
    with pytest.raises(ValueError, match="batch_size: must be at least 1, got 0"):
        list(predict_files(Darkness(), [folder], batch_size=0))


def test_csv_has_a_row_a_file_and_a_column_a_class(folder, tmp_path):
    model, out = Darkness(), tmp_path / "out" / "table.csv"
    assert write_csv(predict_files(model, [folder]), model.classes, out) == 3
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "class", "dark, plain", "light"]
    assert rows[2] == {
        "file": str(folder / "deeper/c.bmp"), "class": "dark, plain", "dark, plain": "0.800000", "light": "0.200000"
    }  # fmt: skip


def test_csv_goes_to_standard_output(folder, capsys):
    assert write_csv(predict_files(Darkness(), [folder]), ("dark, plain", "light")) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == 'file,class,"dark, plain",light'
    assert len(lines) == 4


def test_an_error_half_way_leaves_the_old_table(folder, tmp_path):
    out = tmp_path / "table.csv"
    out.write_text("old")
    (folder / "b.png").write_bytes(b"no image at all")
    with pytest.raises(CapsellaError, match=r"b\.png"):
        write_csv(predict_files(Darkness(), [folder], batch_size=1), ("dark, plain", "light"), out)
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["table.csv"]


@pytest.mark.skipif(sys.platform != "linux", reason="file names that are not UTF-8 exist on Linux only")
def test_file_names_that_are_not_utf8_survive(tmp_path):
    save(tmp_path / "x.png", 0)
    os.rename(tmp_path / "x.png", os.fsencode(tmp_path) + b"/caf\xe9.png")
    write_csv(predict_files(Darkness(), [tmp_path]), ("dark, plain", "light"), tmp_path / "out" / "t.csv")
    assert b"caf\xe9.png" in (tmp_path / "out" / "t.csv").read_bytes()
