import re

import pytest
import torch

from capsella import _native
from capsella.bench import backends
from capsella.bench.backends import MAKERS, bench
from capsella.data import ImageSet
from capsella.export.graph import with_backend
from capsella.models import create_model
from capsella.models.scoring import predict_with_scores
from capsella.routing import DynamicRouting, RandomRouting, UniformRouting
from capsella.routing.cluster import cluster_routing
from capsella.training import fit_ood_detector


def small():
    model = create_model("sabour2017_cnn", image_size=6)
    pixels = torch.randint(256, (5, 1, 6, 6), dtype=torch.uint8)
    return model, ImageSet(pixels, torch.zeros(5, dtype=torch.long), model.classes)


def test_onnx_runtime_in_float32_and_int8():
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extra `export`")
    before = torch.get_num_threads()
    result = bench(*small(), backends=["onnxruntime", "onnxruntime-int8"], threads=1, calls=100, batch_sizes=(1, 4))
    assert list(result.latencies) == ["onnxruntime", "onnxruntime-int8"]
    assert result.differences["onnxruntime"] < 1e-5 < result.differences["onnxruntime-int8"]
    assert torch.get_num_threads() == before


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("capsella.bench.backends.find_spec", lambda name: None)
    result = bench(*small(), backends=["eager", "openvino"], threads=1, calls=100, batch_sizes=(1,))
    assert result.unavailable == {"openvino": "openvino is not installed"}


@pytest.mark.parametrize(
    ("routing", "backend", "reason"),
    [
        (UniformRouting(), "native", "uniform routing has no native kernels"),
        (RandomRouting(), "onnxruntime", "model: must not draw random numbers to be exported"),
        (DynamicRouting(), "native", "its tied layers take no vote_offset"),
    ],
)
def test_a_network_that_a_backend_cannot_run_is_listed_with_the_reason(routing, backend, reason):
    """And the others are timed all the same."""
    network = "hinton2018_matrix_capsnet_small" if isinstance(routing, DynamicRouting) else "sabour2017_capsnet"
    model = create_model(network, image_size=32, classes=3, routing=routing).eval()
    pixels = torch.randint(256, (3, 1, 32, 32), dtype=torch.uint8)
    images = ImageSet(pixels, torch.zeros(3, dtype=torch.long), model.classes)
    if backend == "onnxruntime":
        pytest.importorskip("onnxscript", reason="needs the extra `export`")
    result = bench(model, images, backends=["eager", backend], calls=100, batch_sizes=(1,), most_seconds=0.5)
    assert list(result.latencies) == ["eager"]
    assert reason in result.unavailable[backend]


@pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))
def test_cluster_routing_has_both_backends(monkeypatch):
    """Its layers have the backend of their own."""
    model = create_model("zhao2021_cluster_capsnet", image_size=16, channels=1, classes=3).eval()
    images = ImageSet(torch.zeros(2, 1, 16, 16, dtype=torch.uint8), torch.zeros(2, dtype=torch.long), model.classes)
    asked = []

    def noting(votes, backend):
        asked.append(backend)
        return cluster_routing(votes, backend=backend)

    monkeypatch.setattr("capsella.layers.cluster.cluster_routing", noting)
    result = bench(model, images, backends=["eager"], calls=100, batch_sizes=(1,), most_seconds=0.1)
    assert set(asked) == {"eager"}
    result = bench(model, images, backends=["native"], calls=100, batch_sizes=(1,), most_seconds=0.1)
    assert list(result.latencies) == ["native"]
    assert set(asked) == {"eager", "native"}  # eager is what the native kernels are compared with


def test_openvino_agrees():
    pytest.importorskip("openvino", reason="needs openvino")
    assert bench(*small(), backends=["openvino"], calls=100, batch_sizes=(1,)).differences["openvino"] < 1e-4


@pytest.mark.parametrize(("answer", "difference"), [(0.9, r"0\.\d+"), (float("nan"), "nan")])
def test_a_backend_that_differs_has_no_speed(monkeypatch, answer, difference):
    monkeypatch.setitem(MAKERS, "native", lambda *_: lambda part: torch.full((len(part), 10), answer))
    result = bench(*small(), backends=["eager", "native"], calls=100, batch_sizes=(1,))
    assert list(result.latencies) == ["eager"]
    assert re.fullmatch(f"differs from eager by {difference}, more than 0.0001", result.unavailable["native"])


def test_predict_with_ood_detection(monkeypatch):
    """Which takes a second pass; without it packed weights are all there is."""
    model, images = small()
    short = {"backends": ["packed", "predict"], "calls": 100, "batch_sizes": (1,)}
    alone = bench(model, images, **short)
    assert list(alone.latencies) == ["packed"]
    assert "OOD detector" in alone.unavailable["predict"]
    images = ImageSet(torch.randint(256, (90, 1, 6, 6), dtype=torch.uint8), torch.arange(90) % 10, model.classes)
    fit_ood_detector(model.eval(), images.subset(torch.arange(45)), images.subset(torch.arange(45, 90)))
    asked = []
    monkeypatch.setattr(backends, "predict_with_scores", lambda *given: asked.append(1) or predict_with_scores(*given))
    found = bench(model, images, **short)
    assert found.differences["predict"] < 1e-4
    assert len(asked) > 100


def test_a_backend_is_compared_on_all_images_that_are_timed(monkeypatch):
    """The last of them alone differs."""
    model, images = small()
    usual = MAKERS["eager"](with_backend(model, "eager"), images, None)
    wrong = usual(images.images[4:].float() / 255)

    def maker(*_):
        return lambda part: usual(part) + 0.1 * torch.isclose(usual(part), wrong, atol=1e-6).all(1, keepdim=True)

    monkeypatch.setitem(MAKERS, "native", maker)
    result = bench(model, images, backends=["eager", "native"], calls=100, batch_sizes=(1, 5))
    assert result.unavailable["native"].startswith("differs from eager by 0.1")


def test_what_cannot_be_measured():
    model, images = small()
    with pytest.raises(ValueError, match="backends: must name at least one, got none"):
        bench(model, images, backends=[])
    with pytest.raises(ValueError, match="threads: must be at least 1, got 0"):
        bench(model, images, threads=0)
    with pytest.raises(ValueError, match="images: must hold at least one, got none"):
        bench(model, images.subset([]))
