"""novelty.safetensors: it travels with the weights that it was fitted to, and with no others."""

import pytest
import safetensors.torch
import torch

from capsella import errors
from capsella.errors import CapsellaError, CapsellaWarning
from capsella.models import ImageClassifier, create_model, fit_novelty


@pytest.fixture(autouse=True)
def _warned_anew(monkeypatch):
    monkeypatch.setattr(errors, "_warned", set())


@pytest.fixture
def model():
    model = create_model("hinton2018_cnn", image_size=4, classes=3)
    images = [(torch.rand(20, 1, 4, 4), torch.arange(20) % 3)]
    model.novelty = fit_novelty(model, images, images)
    return model


def test_it_travels_with_the_model(model, tmp_path):
    model.save_pretrained(tmp_path / "a")
    again = ImageClassifier.from_pretrained(tmp_path / "a")
    again.save_pretrained(tmp_path / "b")
    once_more = ImageClassifier.from_pretrained(tmp_path / "b")
    assert once_more.novelty.digest == again.novelty.digest == model.novelty.digest
    assert once_more.novelty.scores == model.novelty.scores
    for name, gaussian in model.novelty.gaussians.items():
        torch.testing.assert_close(once_more.novelty.gaussians[name].means, gaussian.means)
        torch.testing.assert_close(once_more.novelty.gaussians[name].whitening, gaussian.whitening)
    assert create_model("hinton2018_cnn", image_size=4, classes=3, pretrained=tmp_path / "a").novelty is None


def test_weights_that_have_changed_are_saved_without(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = ImageClassifier.from_pretrained(tmp_path)
    with torch.no_grad():
        next(again.parameters()).add_(1)
    with pytest.warns(CapsellaWarning, match=r"saved without novelty\.safetensors"):
        again.save_pretrained(tmp_path)
    assert ImageClassifier.from_pretrained(tmp_path).novelty is None
    assert not (tmp_path / "novelty.safetensors").exists()


def test_that_of_other_weights_is_not_used(model, tmp_path):
    model.save_pretrained(tmp_path / "a")
    create_model("hinton2018_cnn", image_size=4, classes=3).save_pretrained(tmp_path / "b")
    (tmp_path / "b" / "novelty.safetensors").write_bytes((tmp_path / "a" / "novelty.safetensors").read_bytes())
    with pytest.warns(CapsellaWarning, match=r"novelty\.safetensors was fitted to other weights, so it is not used"):
        assert ImageClassifier.from_pretrained(tmp_path / "b").novelty is None


def cut(file):
    file.write_bytes(file.read_bytes()[:-8])


def without(name):
    def change(file):
        tensors = {key: value for key, value in safetensors.torch.load_file(file).items() if key != name}
        safetensors.torch.save_file(tensors, file)

    return change


def not_a_number(file):
    tensors = safetensors.torch.load_file(file)
    tensors["means.features"][0, 0] = float("nan")
    safetensors.torch.save_file(tensors, file)


CHANGES = [cut, without("largest"), without("whitening.features"), without("familiar.features"), not_a_number]


@pytest.mark.parametrize("change", [*CHANGES, lambda file: file.write_bytes(b"")])
def test_damaged(model, tmp_path, change):
    model.save_pretrained(tmp_path)
    change(tmp_path / "novelty.safetensors")
    with pytest.raises(CapsellaError, match=r"novelty\.safetensors is damaged or not written by capsella"):
        ImageClassifier.from_pretrained(tmp_path)


def test_that_of_another_version_is_not_used(model, tmp_path):
    model.save_pretrained(tmp_path)
    file = tmp_path / "novelty.safetensors"
    metadata = {"weights": "those", "form": "0"}
    safetensors.torch.save_file(safetensors.torch.load_file(file), file, metadata)
    with pytest.warns(CapsellaWarning, match="is of another version, so it is not used; capsella calibrate"):
        assert ImageClassifier.from_pretrained(tmp_path).novelty is None
