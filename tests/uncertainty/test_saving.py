"""calibration.json and ood_detector.safetensors belong to the weights they were fitted to, and to no others."""

import pytest
import safetensors.torch
import torch

from capsella import errors
from capsella.data import ImageSet
from capsella.errors import CapsellaError, CapsellaWarning
from capsella.models import ImageClassifier, create_model
from capsella.uncertainty import fit_calibration, fit_ood_detector

FILES = {"calibration": "calibration.json", "ood_detector": "ood_detector.safetensors"}
each = pytest.mark.parametrize("fitted", FILES)


@pytest.fixture(autouse=True)
def _warned_anew(monkeypatch):
    monkeypatch.setattr(errors, "_warned", set())


@pytest.fixture
def model():
    model = create_model("hinton2018_cnn", image_size=4, classes=3)
    images = ImageSet(torch.randint(256, (20, 1, 4, 4), dtype=torch.uint8), torch.arange(20) % 3, model.classes)
    model.calibration = fit_calibration(torch.rand(20, 3), torch.arange(20) % 3)
    fit_ood_detector(model, images, images, change=lambda pixels: pixels / 2)
    return model


def test_both_travel_with_the_model(model, tmp_path):
    model.save_pretrained(tmp_path / "a")
    again = ImageClassifier.from_pretrained(tmp_path / "a")
    again.save_pretrained(tmp_path / "b")
    once_more = ImageClassifier.from_pretrained(tmp_path / "b")
    assert once_more.calibration == again.calibration
    assert once_more.calibration.scores == model.calibration.scores
    assert once_more.ood_detector.digest == model.ood_detector.digest
    torch.testing.assert_close(once_more.ood_detector.shifted, model.ood_detector.shifted)
    for name, gaussian in model.ood_detector.gaussians.items():
        torch.testing.assert_close(once_more.ood_detector.gaussians[name].means, gaussian.means)
        torch.testing.assert_close(once_more.ood_detector.gaussians[name].whitening, gaussian.whitening)


def test_changed_weights_are_saved_without(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = ImageClassifier.from_pretrained(tmp_path)
    with torch.no_grad():
        next(again.parameters()).add_(1)
    with pytest.warns(CapsellaWarning):
        again.save_pretrained(tmp_path)
    assert not any((tmp_path / file).exists() for file in FILES.values())


@each
def test_a_file_of_other_weights_is_not_used(model, tmp_path, fitted):
    model.save_pretrained(tmp_path / "a")
    create_model("hinton2018_cnn", image_size=4, classes=3).save_pretrained(tmp_path / "b")
    (tmp_path / "b" / FILES[fitted]).write_bytes((tmp_path / "a" / FILES[fitted]).read_bytes())
    with pytest.warns(CapsellaWarning, match=FILES[fitted]):
        assert getattr(ImageClassifier.from_pretrained(tmp_path / "b"), fitted) is None


def without(name):
    def change(file):
        tensors = {key: value for key, value in safetensors.torch.load_file(file).items() if key != name}
        safetensors.torch.save_file(tensors, file)

    return change


def not_a_number(file):
    tensors = safetensors.torch.load_file(file)
    tensors["means.features"][0, 0] = float("nan")
    safetensors.torch.save_file(tensors, file)


DAMAGE = [
    *(("calibration", lambda file, text=text: file.write_text(text)) for text in ("", "[]", "[" * 100_000)),
    ("ood_detector", lambda file: file.write_bytes(file.read_bytes()[:-8])),
    *(("ood_detector", without(name)) for name in ("largest", "whitening.features")),
    ("ood_detector", not_a_number),
]


@pytest.mark.parametrize(("fitted", "damage"), DAMAGE)
def test_damaged(model, tmp_path, fitted, damage):
    model.save_pretrained(tmp_path)
    damage(tmp_path / FILES[fitted])
    with pytest.raises(CapsellaError, match=FILES[fitted]):
        ImageClassifier.from_pretrained(tmp_path)
