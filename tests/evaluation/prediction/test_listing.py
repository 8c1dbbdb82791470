import os

import pytest

from capsella.errors import CapsellaError
from capsella.evaluation import find_images, image_files, passed_over, predict_files
from capsella.evaluation.prediction.names import Names


def names(folder):
    return [path.relative_to(folder).as_posix() for path in find_images([folder])]


def test_folders_are_walked_sorted_without_hidden_and_other_files(folder):
    assert names(folder) == ["a.PNG", "b.png", "deeper/c.bmp"]


def test_a_file_named_twice_is_taken_once_and_any_suffix_as_given(folder, save):
    odd = save(folder / "x.png", 1).rename(folder / "x.image")
    assert find_images([odd, folder / "b.png", folder]) == [
        odd, folder / "b.png", folder / "a.PNG", folder / "deeper/c.bmp"
    ]  # fmt: skip


def test_loops_of_links_end(folder):
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "loop.png").symlink_to(folder, target_is_directory=True)
    (folder / "deeper" / "up").symlink_to("../deeper", target_is_directory=True)
    assert names(folder) == ["a.PNG", "b.png", "deeper/c.bmp"]
    (folder / "itself.png").symlink_to("itself.png")
    (folder / "gone.png").symlink_to("nowhere.png")
    (folder / "link.png").symlink_to("b.png")
    assert names(folder) == ["a.PNG", "b.png", "gone.png", "itself.png", "link.png", "deeper/c.bmp"]


def test_a_folder_with_an_images_name_is_a_folder(folder, save):
    save(folder / "x.png" / "y.png", 3)
    assert names(folder) == ["a.PNG", "b.png", "deeper/c.bmp", "x.png/y.png"]


@pytest.fixture
def deep(tmp_path, monkeypatch):
    """1,200 folders in each other; taken away by steps, which neither pytest nor shutil does."""
    monkeypatch.chdir(tmp_path)
    for _ in range(1200):
        os.mkdir("d")
        os.chdir("d")
    yield tmp_path
    for name in os.listdir():
        os.remove(name)
    for _ in range(1200):
        os.chdir("..")
        os.rmdir("d")


def test_folders_deeper_than_pythons_stack(deep, save):
    save(deep / "x.png", 1).rename("y.png")
    (found,) = image_files([deep])
    assert found.endswith("/d/d/y.png")


def test_a_folder_that_cannot_be_listed_is_a_broken_file_with_the_reason(folder, monkeypatch, darkness):
    usual = os.scandir

    def scandir(path="."):
        if str(path).endswith("deeper"):
            raise PermissionError(13, "Permission denied", str(path))
        return usual(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert names(folder) == ["a.PNG", "b.png", "deeper"]
    broken = []
    assert len(list(predict_files(darkness, [folder], broken=broken))) == 2
    assert [(entry.file, "Permission denied" in entry.reason) for entry in broken] == [(folder / "deeper", True)]


def test_names_are_not_collected(folder, save):
    """The first name is there before the last folder is looked at."""
    listed = image_files([folder])
    assert next(listed).endswith("a.PNG")
    save(folder / "deeper" / "later.png", 3)
    assert [os.path.basename(name) for name in listed] == ["b.png", "c.bmp", "later.png"]


def test_missing_path_and_folder_without_images_are_errors(tmp_path):
    with pytest.raises(CapsellaError, match=r"nowhere\.png: there is no such file or folder"):
        find_images([tmp_path / "nowhere.png"])
    with pytest.raises(CapsellaError, match=r"the folder holds no image"):
        find_images([tmp_path])


def test_a_list_names_each_file_once(tmp_path):
    (tmp_path / "a.png").touch()
    names = tmp_path / "names.txt"
    names.write_text(f"{tmp_path}/a.png\r\n\nb c.png\nb c.png\n")
    assert list(image_files([names, tmp_path])) == [f"{tmp_path}/a.png", "b c.png"]
    names.write_text("\n")
    with pytest.raises(CapsellaError, match="the list is empty"):
        list(image_files([names]))


def test_names_are_told_apart_as_their_table_grows():
    names = Names()
    assert all(names.add(f"{number}.png") for number in range(5000))
    assert not any(names.add(f"{number}.png") for number in range(5000))
    assert len(names) == 5000
    assert "5000.png" not in names
    assert names.add("caf\udce9.png")  # bytes that are not UTF-8


def test_what_is_passed_over_is_counted_by_kind(folder, save, tmp_path):
    (folder / "deeper" / "scan.dcm").touch()
    (folder / "noending").touch()
    (folder / ".hidden").touch()
    (folder / "elsewhere").symlink_to(tmp_path, target_is_directory=True)
    (line,) = passed_over([folder, folder / "b.png"])
    kinds = line.removeprefix("passed over ").partition(" (")[0].split(", ")
    assert {"1 link to a folder", "1 file without an ending", "1 .dcm file"} <= set(kinds)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "all").symlink_to(folder, target_is_directory=True)
    with pytest.raises(CapsellaError, match=r"holds no image \(.*\); passed over 1 link to a folder \(all\)"):
        find_images([tmp_path / "links"])


def test_lists_of_other_systems(tmp_path):
    (tmp_path / "LIST.TXT").write_bytes("a ä.png\r\nb.png\r\n".encode("utf-16"))
    assert list(image_files([tmp_path / "LIST.TXT"])) == ["a ä.png", "b.png"]
