"""Backends are timed if they can run and agree with eager PyTorch; otherwise the reason is listed."""

import pytest
import torch

from capsella.bench import MAKERS, bench, stopwatch
from capsella.data import ImageSet
from capsella.errors import ArgumentError
from capsella.export.graph import with_backend
from capsella.models import create_model
from capsella.routing import DynamicRouting, UniformRouting


@pytest.fixture(autouse=True)
def _few_calls(monkeypatch):
    monkeypatch.setattr(stopwatch, "MIN_CALLS", 10)


def small():
    model = create_model("sabour2017_cnn", image_size=6)
    pixels = torch.randint(256, (5, 1, 6, 6), dtype=torch.uint8)
    return model, ImageSet(pixels, torch.zeros(5, dtype=torch.long), model.classes)


QUICK = {"threads": 1, "calls": 10, "batch_sizes": (1,)}


@pytest.mark.usefixtures("_without_shape_checks")
def test_onnx_runtime_in_float32_and_int8():
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extra `export`")
    before = torch.get_num_threads()
    result = bench(*small(), backends=["onnxruntime", "onnxruntime-int8"], **QUICK)
    assert list(result.latencies) == ["onnxruntime", "onnxruntime-int8"]
    assert result.differences["onnxruntime"] < 1e-5 < result.differences["onnxruntime-int8"]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("routing", [UniformRouting(), DynamicRouting()])
def test_a_network_that_a_backend_cannot_run_is_listed(routing):
    """Native kernels of dynamic routing take no coordinates; uniform couplings need none."""
    network = "hinton2018_matrix_capsnet_small" if isinstance(routing, DynamicRouting) else "sabour2017_capsnet"
    model = create_model(network, image_size=20, classes=3, routing=routing).eval()
    pixels = torch.randint(256, (3, 1, 20, 20), dtype=torch.uint8)
    images = ImageSet(pixels, torch.zeros(3, dtype=torch.long), model.classes)
    result = bench(model, images, backends=["eager", "native"], max_seconds=0.1, **QUICK)
    assert list(result.latencies) == ["eager"]
    assert list(result.unavailable) == ["native"]


@pytest.mark.parametrize("wrong", ["constant", "nan", "last image"])
def test_a_backend_that_differs_is_not_timed(monkeypatch, wrong):
    """It is compared on all images that are timed."""
    model, images = small()
    eager = MAKERS["eager"](with_backend(model, "eager"), images, None)
    last = eager(images.images[4:].float() / 255)
    run = {
        "constant": lambda part: torch.full((len(part), 10), 0.9),
        "nan": lambda part: torch.full((len(part), 10), float("nan")),
        "last image": lambda part: eager(part) + 0.1 * torch.isclose(eager(part), last, atol=1e-6).all(1, keepdim=True),
    }[wrong]
    monkeypatch.setitem(MAKERS, "native", lambda *_: run)
    result = bench(model, images, backends=["eager", "native"], **{**QUICK, "batch_sizes": (1, 5)})
    assert list(result.latencies) == ["eager"]
    assert "eager" in result.unavailable["native"]


def test_what_cannot_be_measured():
    model, images = small()
    for names, few in (([], images), (["egaer"], images), (["eager"], images.subset([]))):
        with pytest.raises(ArgumentError):
            bench(model, few, backends=names)
