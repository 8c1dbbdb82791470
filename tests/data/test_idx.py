"""IDX files, and downloads with mirrors and checksums."""

import gzip
import hashlib
import struct
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from capsella.data import NamedData, load_data
from capsella.data.download import find_or_download
from capsella.data.sources import idx
from capsella.errors import CapsellaError


def pack(values: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
    return gzip.compress(head + values.tobytes(), mtime=0)


def write_mnist(folder: Path, name: str = "mnist", per_class: int = 4) -> None:
    (folder / name).mkdir(parents=True)
    for number, split in enumerate(("train", "t10k")):
        labels = np.arange(10 * per_class, dtype=np.uint8) % 10
        images = np.random.default_rng(number).integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
        (folder / name / f"{split}-images-idx3-ubyte.gz").write_bytes(pack(images))
        (folder / name / f"{split}-labels-idx1-ubyte.gz").write_bytes(pack(labels))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """The URL of a server, the folder it serves, and the paths asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *_: object) -> None:
            asked.append(self.path)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    served = tmp_path / "served"
    served.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=served))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", served, asked
    server.shutdown()
    server.server_close()


def test_images_and_labels_are_read(root: Path):
    write_mnist(root)
    splits = load_data(NamedData("mnist", validation=0.25))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (30, 10, 40)
    assert splits.image_size == (28, 28)
    expected = np.random.default_rng(1).integers(0, 256, (40, 28, 28), dtype=np.uint8)
    assert np.array_equal(splits.test.images.numpy()[:, 0], expected)
    assert splits.test.labels.tolist() == [*range(10)] * 4
    assert load_data(NamedData("mnist", size=32, channels=3)).test.images.shape == (40, 3, 32, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pack(np.zeros((5, 4, 4), np.uint8))[:-9], "cannot be unpacked with gzip"),
        (
            gzip.compress(bytes((0, 0, 8, 3)) + struct.pack(">3I", 2, 4, 4) + bytes(31)),
            r"sizes \[2, 4, 4\], but 31 values",
        ),
    ],
    ids=["cut off", "few values"],  # compressed bytes hold the time
)
def test_damaged_files_are_named(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(CapsellaError, match=rf"x\.gz: .*{message}"):
        idx.read_idx(tmp_path / "x.gz", 3)


def test_a_set_is_downloaded_once(root: Path, server: tuple[str, Path, list[str]], monkeypatch: pytest.MonkeyPatch):
    url, served, asked = server
    write_mnist(served, "mirror")
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (served / "mirror").iterdir()}
    monkeypatch.setitem(idx._SHA256, "mnist", sums)
    monkeypatch.setitem(idx._MIRRORS, "mnist", (f"{url}gone/", f"{url}mirror/"))
    first = load_data(NamedData("mnist"))
    assert len(asked) == 8  # four files, each asked of the mirror that is gone first
    assert len(first.test) == len(load_data(NamedData("mnist")).test) == 40
    assert len(asked) == 8


def test_a_wrong_checksum_is_an_error_and_leaves_no_file(root: Path, server: tuple[str, Path, list[str]]):
    url, served, _ = server
    (served / "a.bin").write_bytes(b"what someone put there")
    with pytest.raises(CapsellaError, match=r"a\.bin") as error:
        find_or_download("set/a.bin", [url + "a.bin"], f"sha256:{'0' * 64}")
    assert "CAPSELLA_DATA" in str(error.value)
    assert not list(root.rglob("*a.bin*"))


def test_idx_files_are_not_unpacked_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(idx, "MAX_BYTES", 100_000)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 1000, 28, 28) + bytes(784_000)))
    with pytest.raises(CapsellaError):
        idx.read_idx(path, 3)
