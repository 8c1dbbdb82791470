"""CIFAR-10 in its binary form."""

import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from capsella.data import NamedData, load_data

NAMES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def write_archive(root: Path, records: list[np.ndarray]) -> None:
    (root / "cifar10").mkdir(exist_ok=True)
    with tarfile.open(root / "cifar10/cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, values in zip(NAMES, records, strict=True):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = values.size
            archive.addfile(member, BytesIO(values.tobytes()))


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Six files of ten records: a label, then all of red, green, blue."""
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    pixels = np.random.default_rng(0).integers(0, 256, (6, 10, 3072), dtype=np.uint8)
    labels = np.tile(np.arange(10, dtype=np.uint8)[None, :, None], (6, 1, 1))
    return list(np.concatenate([labels, pixels], axis=2))


def test_records_become_images(tmp_path: Path, records: list[np.ndarray]):
    write_archive(tmp_path, records)
    splits = load_data(NamedData("cifar10", validation=0.2))
    assert [len(images) for images in splits.named().values()] == [40, 10, 10]
    assert splits.classes[3] == "cat"
    assert np.array_equal(splits.test.images.numpy(), records[5][:, 1:].reshape(10, 3, 32, 32))
    assert splits.test.labels.tolist() == list(range(10))
