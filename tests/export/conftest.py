"""A tiny capsule network and splits of digits, fit for it in half a minute less than a real training."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from jaxtyping import config

from capsella.data import NamedData, load_data
from capsella.losses import margin_loss
from capsella.models import create_model
from capsella.routing import DynamicRouting
from capsella.uncertainty import fit_calibration, fit_ood_detector

SIZE = 17  # the least that CapsNet's kernels allow


@contextmanager
def without_shape_checks() -> Iterator[None]:
    """While torch.export traces, sizes are symbols, which are no int to the annotations' checks."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def _without_shape_checks() -> Iterator[None]:
    with without_shape_checks():
        yield


@pytest.fixture(scope="session")
def splits():
    """Handwritten digits, 17×17: 100 to train, 50 to validate, which the OOD check needs, 40 to test."""
    return load_data(NamedData("digits", size=SIZE, per_class=10, test_per_class=4, validation_per_class=5))


@pytest.fixture(scope="session")
def model(splits):
    """CapsNet with two iterations, a few steps from its initial weights; no test changes it."""
    torch.manual_seed(0)
    model = create_model("sabour2017_capsnet", image_size=SIZE, routing=DynamicRouting(iterations=2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    images, labels = splits.train.images.float() / 255, splits.train.labels
    for _ in range(6):
        for chosen in torch.randperm(len(images)).split(20):
            optimizer.zero_grad()
            margin_loss(model(images[chosen]).activations, labels[chosen]).backward()
            optimizer.step()
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def plain_onnx(model, tmp_path_factory):
    """A float32 file with activations alone, and its description."""
    pytest.importorskip("onnxscript", reason="needs the extra `export`")
    from capsella.export import write_onnx

    path = tmp_path_factory.mktemp("onnx") / "digits.onnx"
    with without_shape_checks():
        return path, write_onnx(model, path, facts={"recipe": "tiny"})


@pytest.fixture(scope="session")
def exported_onnx(model, splits, tmp_path_factory):
    """The folder of a calibrated network, checked as every export is."""
    pytest.importorskip("onnxscript", reason="needs the extra `export`")
    pytest.importorskip("onnxruntime", reason="needs the extra `export`")
    from capsella.export import ExportImages, export_model

    fitted = copy.deepcopy(model)
    with torch.no_grad():
        activations = fitted(splits.validation.images.float() / 255).activations
    fitted.calibration = fit_calibration(activations, splits.validation.labels)
    fit_ood_detector(fitted, splits.train, splits.validation, change=lambda pixels: pixels / 2)
    with without_shape_checks():
        images, folder = ExportImages(splits.train, splits.test), tmp_path_factory.mktemp("onnx") / "digits"
        exported = export_model(fitted, images, folder, facts={"recipe": "tiny"})
    return fitted, exported
