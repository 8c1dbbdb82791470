"""A saved model that is not as it must be: a clear error that names the file."""

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
from capsella.models import CapsuleClassifier, ImageClassifier, create_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_model("sabour2017_cnn", image_size=2, classes=3).save_pretrained(tmp_path)
    return tmp_path


def edit_description(folder: Path, **changes: object) -> None:
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(CapsellaError, match=message):
        ImageClassifier.from_pretrained(folder)


def test_whoever_may_read_a_folder_may_read_its_weights(folder: Path) -> None:
    modes = {(folder / name).stat().st_mode for name in ("model.json", "model.safetensors")}
    assert len(modes) == 1


def test_pretrained_weights_in_a_new_model(folder: Path) -> None:
    saved = ImageClassifier.from_pretrained(folder)
    model = create_model("sabour2017_cnn", pretrained=folder, image_size=2, classes=3)
    for ours, theirs in zip(model.state_dict().values(), saved.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_missing_description(folder: Path) -> None:
    (folder / "model.json").unlink()
    assert_refused(folder, r"model\.json does not exist; is .* a saved model or a run folder\?")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"name": "sabour2017_cnn"}', '{"name": "a", "options": 3}', "\xff"]
)
def test_damaged_description(folder: Path, content: str) -> None:
    (folder / "model.json").write_bytes(content.encode("latin-1"))
    assert_refused(folder, r"model\.json is damaged or not written by capsella")


def test_description_of_no_known_model(folder: Path) -> None:
    edit_description(folder, name="sabour2017_cnm")
    assert_refused(folder, r"model\.json describes no model .* did you mean sabour2017_cnn")


def test_description_with_an_unknown_option(folder: Path) -> None:
    edit_description(folder, options={"chanels": 1})
    assert_refused(folder, r"model\.json describes no model .* did you mean channels")


def test_description_of_classes_that_are_no_names(folder: Path) -> None:
    path = folder / "model.json"
    description = json.loads(path.read_text())
    description["options"]["classes"][0] = True
    path.write_text(json.dumps(description))
    with pytest.raises(CapsellaError, match="classes: must be a number or names, got True among them"):
        CapsuleClassifier.from_pretrained(folder)


def test_missing_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert_refused(folder, r"model\.safetensors does not exist; was the run interrupted before its first checkpoint\?")


@pytest.mark.parametrize("size", [0, 5, 2000])
def test_damaged_weights(folder: Path, size: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert_refused(folder, r"model\.safetensors is no readable \.safetensors file: ")


def test_weights_of_another_model(folder: Path) -> None:
    edit_description(folder, options={"image_size": [2, 2], "channels": 1, "classes": ["a", "b", "c", "d"]})
    assert_refused(folder, r"model\.safetensors does not hold the weights of this model: [\s\S]*size mismatch")


def test_weights_of_another_kind(folder: Path) -> None:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["network.0.weight"] = weights["network.0.weight"].to(torch.int8)
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    assert_refused(
        folder, r"model\.safetensors does not hold the weights of this model: 'network\.0\.weight' is of type I8"
    )


LYING = [
    {"image_size": [100_000_000, 100_000_000]},
    {"image_size": [8_000, 8_000]},  # a dense layer of terabytes
    {"image_size": 1e400},
    {"image_size": [-4, -4]},
    {"image_size": "large"},
    {"image_size": [2, 2, 2]},
    {"image_size": None},
    {"channels": 10**9},
    {"channels": -1},
    {"channels": "three"},
    {"classes": 10**12},
    {"classes": 10**6},
    {"classes": 7.5},
    {"classes": []},
]


@pytest.mark.parametrize("lie", LYING, ids=str)
def test_a_description_that_lies_about_shapes_is_refused_without_memory(folder: Path, lie: dict[str, object]) -> None:
    options = {"image_size": [2, 2], "channels": 1, "classes": ["a", "b", "c"]}
    edit_description(folder, options=options | lie)
    before = psutil.Process().memory_info().rss
    assert_refused(
        folder, r"model\.(json describes no model|safetensors does not hold the weights of this model: size mis)"
    )
    assert psutil.Process().memory_info().rss - before < 500e6


def write_weights(
    folder: Path, header: dict[str, object] | bytes, length: int | None = None, data: bytes = b""
) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    head = struct.pack("<Q", len(text) if length is None else length)
    (folder / "model.safetensors").write_bytes(head + text + data)


def test_weights_whose_header_lies(folder: Path) -> None:
    huge = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}
    no_readable = r"model\.safetensors is no readable \.safetensors file: "
    write_weights(folder, {"network.0.weight": huge}, data=bytes(64))
    assert_refused(folder, no_readable)
    write_weights(folder, {"network.0.weight": huge | {"data_offsets": [0, 64]}}, data=bytes(64))
    assert_refused(folder, no_readable)
    write_weights(folder, {"a": huge | {"shape": [1 << 32, 1 << 33], "data_offsets": [0, 64]}}, data=bytes(64))
    assert_refused(folder, no_readable)
    for length in (1 << 63, 1 << 40, 99_000_000):
        write_weights(folder, b"{}", length)
        assert_refused(folder, no_readable)
    write_weights(folder, b"[" * 100_000)
    assert_refused(folder, no_readable)
    write_weights(folder, {"other": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}, data=bytes(64))
    assert_refused(folder, "size mismatch of 'network.0.bias': missing in the file")


class Trap:
    """What unpickling this would do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
@pytest.mark.parametrize("write", [lambda state, path: path.write_bytes(pickle.dumps(state)), torch.save])
def test_code_in_a_pickle_is_not_run(folder: Path, name: str, write: Callable[[object, Path], object]) -> None:
    write({"network.0.weight": Trap(folder / "trapped")}, folder / name)
    assert_refused(folder, rf"{name} is (no readable \.safetensors file|damaged or not written by capsella)")
    assert not (folder / "trapped").exists()


@pytest.mark.parametrize("content", ["[" * 100_000, '{"name": "a", "options": {"classes": ' + "9" * 5_000 + "}}"])
def test_descriptions_that_break_parsers(folder: Path, content: str) -> None:
    (folder / "model.json").write_text(content)
    assert_refused(folder, r"model\.json is damaged or not written by capsella")


def test_a_description_too_long_to_read(folder: Path) -> None:
    with open(folder / "model.json", "wb") as file:
        file.truncate(50_000_001)
    assert_refused(folder, r"model\.json is not written by capsella: it has more than 50,000,000 bytes")


def test_a_cnn_where_capsules_are_asked_for(folder: Path) -> None:
    with pytest.raises(CapsellaError, match="holds a ConvolutionalClassifier, not a CapsuleClassifier"):
        CapsuleClassifier.from_pretrained(folder)
