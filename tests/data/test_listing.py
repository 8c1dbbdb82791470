"""What is known of a folder of images before it is read."""

import pytest
from PIL import Image

from capsella.data import FolderSummary, inspect_folder
from capsella.errors import CapsellaError


def write(folder, name, size, mode="RGB"):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(folder / name)


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


def test_a_folder_that_is_split_tells_how_many_images_are_to_learn_from(tmp_path):
    for split, number in (("train", 3), ("test", 2)):
        for name in "ab":
            for k in range(number):
                write(tmp_path / split / name, f"{k}.png", (8, 8))
    found = inspect_folder(tmp_path)
    assert (found.images, found.train, found.classes) == (10, 6, ("a", "b"))


def test_broken_files_are_passed_over_unless_there_is_nothing_else(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(b"no image")
    with pytest.raises(CapsellaError):
        inspect_folder(tmp_path)
    write(tmp_path / "a", "y.png", (9, 8), "L")
    assert (inspect_folder(tmp_path).height, inspect_folder(tmp_path).images) == (8, 3)
