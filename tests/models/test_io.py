"""Saved models that are damaged, hostile, or of another network: an error that names the file."""

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import safetensors.torch
import torch

from capsella.errors import CapsellaError
from capsella.models import ImageClassifier, create_model

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
OPTIONS = {"image_size": [2, 2], "channels": 1, "classes": ["a", "b", "c"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_model("sabour2017_cnn", image_size=2, classes=3).save_pretrained(tmp_path)
    return tmp_path


def edit(folder: Path, **changes: object) -> None:
    path = folder / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def assert_fails(folder: Path, file: str) -> None:
    with pytest.raises(CapsellaError, match=file.replace(".", r"\.")):
        ImageClassifier.from_pretrained(folder)


def test_who_may_read_one_file_may_read_both(folder: Path) -> None:
    assert len({(folder / name).stat().st_mode for name in (DESCRIPTION, WEIGHTS)}) == 1


@pytest.mark.parametrize("name", [DESCRIPTION, WEIGHTS])
def test_missing_files(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert_fails(folder, name)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"name": "sabour2017_cnn"}',
        '{"name": "a", "options": 3}',
        "\xff",
        "[" * 100_000,
        '{"name": "a", "options": {"classes": ' + "9" * 5_000 + "}}",
        "0" * 50_000_001,
    ],
    ids=range(9),
)
def test_damaged_descriptions(folder: Path, content: str) -> None:
    (folder / DESCRIPTION).write_bytes(content.encode("latin-1"))
    assert_fails(folder, DESCRIPTION)


@pytest.mark.parametrize(
    "lie",
    [
        {"image_size": [100_000_000, 100_000_000]},
        {"image_size": [8_000, 8_000]},  # a dense layer of terabytes
        {"image_size": 1e400},
        {"image_size": None},
        {"channels": 10**9},
        {"channels": "three"},
        {"chanels": 1},
        {"classes": 10**12},
        {"classes": 10**6},
        {"classes": [True, "b", "c"]},
    ],
    ids=str,
)
def test_wrong_options_in_a_description_take_no_memory(folder: Path, lie: dict[str, object]) -> None:
    edit(folder, options=OPTIONS | lie)
    before = psutil.Process().memory_info().rss
    assert_fails(folder, "model.")
    assert psutil.Process().memory_info().rss - before < 500e6


def test_weights_of_another_network_or_dtype_and_truncated_ones(folder: Path) -> None:
    path = folder / WEIGHTS
    weights = safetensors.torch.load_file(path)
    edit(folder, options=OPTIONS | {"classes": ["a", "b", "c", "d"]})
    assert_fails(folder, WEIGHTS)
    edit(folder, options=OPTIONS)
    safetensors.torch.save_file({**weights, "network.0.weight": weights["network.0.weight"].to(torch.int8)}, path)
    assert_fails(folder, WEIGHTS)
    for size in (2000, 5, 0):
        path.write_bytes(path.read_bytes()[:size])
        assert_fails(folder, WEIGHTS)


HUGE = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}


@pytest.mark.parametrize(
    ("header", "length"),
    [
        ({"network.0.weight": HUGE}, None),
        ({"a": HUGE | {"shape": [1 << 32, 1 << 33], "data_offsets": [0, 64]}}, None),
        ({"other": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}, None),
        ({}, 1 << 63),
        ({}, 99_000_000),
        ("[" * 100_000, None),
    ],
    ids=range(6),
)
def test_weights_with_a_false_header(folder: Path, header: dict[str, object] | str, length: int | None) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", length or len(text)) + text + bytes(64))
    assert_fails(folder, WEIGHTS)


class Trap:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", [WEIGHTS, DESCRIPTION])
@pytest.mark.parametrize("write", [lambda state, path: path.write_bytes(pickle.dumps(state)), torch.save])
def test_code_in_a_pickle_is_not_run(folder: Path, name: str, write: Callable[[object, Path], object]) -> None:
    write({"network.0.weight": Trap(folder / "trapped")}, folder / name)
    assert_fails(folder, name)
    assert not (folder / "trapped").exists()
