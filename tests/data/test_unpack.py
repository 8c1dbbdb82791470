"""Files of few bytes that unpack to many."""

import gzip
import io
import struct
import zipfile

import numpy as np
import pytest

from capsella.data import download
from capsella.data.npz import load_arrays
from capsella.data.sources import idx
from capsella.data.sources.idx import read_idx
from capsella.errors import CapsellaError


def npz(path, header, content=b""):
    labels = io.BytesIO()
    np.save(labels, np.zeros(3, np.int64))
    text = header.encode() + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content)
        archive.writestr("labels.npy", labels.getvalue())
    return path


def test_a_shape_that_no_memory_holds(tmp_path):
    path = npz(tmp_path / "a.npz", "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 17, 17), }")
    with pytest.raises(CapsellaError):
        load_arrays(path)


def test_zeros_are_not_unpacked_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MAX_BYTES", 100_000)
    few = "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 300, 300), }"
    path = npz(tmp_path / "a.npz", few, bytes(270_000))
    with pytest.raises(CapsellaError):
        load_arrays(path)
    path = npz(tmp_path / "b.npz", few, np.random.default_rng(0).bytes(270_000))
    assert load_arrays(path)["images"].shape == (3, 300, 300)


def test_idx_files_are_not_unpacked_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(idx, "MAX_BYTES", 100_000)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 1000, 28, 28) + bytes(784_000)))
    with pytest.raises(CapsellaError):
        read_idx(path, 3)
