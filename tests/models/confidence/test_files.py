"""calibration.json: it travels with the weights that it was fitted to, and with no others."""

import json

import pytest
import torch

from capsella import errors
from capsella.errors import CapsellaError, CapsellaWarning
from capsella.models import ImageClassifier, create_model, fit_confidence


@pytest.fixture(autouse=True)
def _warned_anew(monkeypatch):
    monkeypatch.setattr(errors, "_warned", set())


@pytest.fixture
def model():
    model = create_model("sabour2017_cnn", image_size=2, classes=3)
    model.confidence = fit_confidence(torch.rand(20, 3), torch.arange(20) % 3)
    return model


def test_it_travels_with_the_model(model, tmp_path):
    model.save_pretrained(tmp_path / "a")
    again = ImageClassifier.from_pretrained(tmp_path / "a")
    again.save_pretrained(tmp_path / "b")
    once_more = ImageClassifier.from_pretrained(tmp_path / "b")
    assert once_more.confidence == again.confidence
    assert once_more.confidence.scores == model.confidence.scores
    assert create_model("sabour2017_cnn", image_size=2, classes=3, pretrained=tmp_path / "a").confidence is None


def test_weights_that_have_changed_are_saved_without(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = ImageClassifier.from_pretrained(tmp_path)
    with torch.no_grad():
        next(again.parameters()).add_(1)
    with pytest.warns(CapsellaWarning, match=r"saved without calibration\.json"):
        again.save_pretrained(tmp_path)
    assert ImageClassifier.from_pretrained(tmp_path).confidence is None
    assert not (tmp_path / "calibration.json").exists()


def test_that_of_other_weights_is_not_used(model, tmp_path):
    model.save_pretrained(tmp_path / "a")
    create_model("sabour2017_cnn", image_size=2, classes=3).save_pretrained(tmp_path / "b")
    (tmp_path / "b" / "calibration.json").write_bytes((tmp_path / "a" / "calibration.json").read_bytes())
    with pytest.warns(CapsellaWarning, match=r"calibration\.json was fitted to other weights, so it is not used"):
        assert ImageClassifier.from_pretrained(tmp_path / "b").confidence is None


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 100_000, '{"logits": "log"}', "\xff"])
def test_damaged(model, tmp_path, content):
    model.save_pretrained(tmp_path)
    (tmp_path / "calibration.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CapsellaError, match=r"calibration\.json is damaged or not written by capsella"):
        ImageClassifier.from_pretrained(tmp_path)


def test_the_file_says_what_it_is_of(model, tmp_path):
    model.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "calibration.json").read_text())
    assert {"logits", "temperature", "scores", "nll_before", "nll", "ece_before", "ece", "weights", "prior"} == set(
        values
    )
    assert len(values["weights"]) == 64
