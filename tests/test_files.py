import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors
import torch

from capsella.errors import CapsellaError
from capsella.files import alone_in, write_text, write_whole


def test_a_new_file_in_new_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "notes.txt"
    write_text(path, "café\n")
    assert path.read_bytes() == "café\n".encode()
    assert os.listdir(path.parent) == ["notes.txt"]


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(CapsellaError, match=r"runs/a\.txt: cannot be written \(File exists\)"):
        write_text(tmp_path / "runs" / "a.txt", "")
    with pytest.raises(CapsellaError, match=r"runs: cannot be written"), alone_in(tmp_path / "runs"):
        pass


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(tmp_path / "notes.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "notes.txt").read_text() == "new"


ELSEWHERE = PermissionError(errno.EACCES, "an error about another file", "/elsewhere")


@pytest.mark.parametrize(
    "error", [ValueError("no"), OSError(errno.EIO, "broken"), KeyboardInterrupt(), ELSEWHERE], ids=repr
)
def test_a_failure_keeps_the_old_file_and_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "model.bin"
    path.write_text("old")

    def write(temporary: Path) -> None:
        temporary.write_text("half")
        raise error

    with pytest.raises(type(error)) as caught:
        write_whole(path, write)
    assert caught.value is error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["model.bin"]


def full_disk(temporary: Path) -> None:
    """Half a file, then the kernel's own refusal."""
    temporary.write_text("half")
    with open("/dev/full", "w") as file:
        file.write("rest")


def over_quota(temporary: Path) -> None:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def in_a_library_s_words(temporary: Path) -> None:
    raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


class FullDisk(io.BytesIO):
    """Room for 2000 bytes."""

    def write(self, data: bytes) -> int:
        if self.tell() + len(data) > 2000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def in_torch_save(temporary: Path) -> None:
    """An error of PyTorch's own, that names no reason, raised while it handled the system's."""
    torch.save({"weight": torch.zeros(10_000)}, FullDisk())


needs_dev_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
ways_to_fail = [pytest.param(full_disk, marks=needs_dev_full), over_quota, in_a_library_s_words, in_torch_save]


@pytest.mark.parametrize("write", ways_to_fail)
def test_a_full_disk_is_a_clear_error(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("old")
    with pytest.raises(CapsellaError, match=r"no space left to write .*model\.safetensors; the previous version"):
        write_whole(path, write)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CapsellaError, match=r"pipe: is a device or a pipe, which a file would replace; name a file"):
        write_text(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
