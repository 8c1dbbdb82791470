"""A saved model that is not as it must be: a clear error that names the file."""

import json
from pathlib import Path

import pytest
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


def test_a_cnn_where_capsules_are_asked_for(folder: Path) -> None:
    with pytest.raises(CapsellaError, match="holds a ConvolutionalClassifier, not a CapsuleClassifier"):
        CapsuleClassifier.from_pretrained(folder)
