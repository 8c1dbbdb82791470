"""`capsella export` and `capsella bench`."""

import json
import re

import pytest
import torch
from jaxtyping import config

from capsella.data import ImageSet
from capsella.export.bench import BACKENDS, MAKERS, bench
from capsella.models import create_model

needs_onnx = pytest.mark.usefixtures("_onnx")


@pytest.fixture(autouse=True)
def _without_shape_checks():
    """While torch.export traces, sizes are symbols, which are no int to the annotations' checks."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def _onnx():
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extra `export`")


class TestExport:
    @needs_onnx
    def test_onnx(self, cli, trained):
        answer = cli("export", trained)
        assert answer.code == 0, answer.err
        assert (trained / "images-capsnet.onnx").exists()
        assert "opset 18" in answer.out
        assert "other label for 0 of 6 images" in answer.out
        beside = json.loads((trained / "images-capsnet.onnx.json").read_text())
        assert beside["parity"]["images"] == 6
        assert beside["description"]["classes"] == ["columns", "rings", "rows"]
        assert beside["description"]["recipe"] == "images-capsnet"

    def test_pt2_as_json(self, cli, trained, tmp_path):
        answer = cli("export", trained, "--format", "pt2", "--out", tmp_path / "sub" / "x.pt2", "--json")
        values = json.loads(answer.out)
        assert values == json.loads((tmp_path / "sub" / "x.pt2.json").read_text())
        assert values["bytes"] == (tmp_path / "sub" / "x.pt2").stat().st_size
        assert values["parity"]["holds"] is True

    def test_beyond_the_tolerance(self, cli, trained, tmp_path, monkeypatch):
        monkeypatch.setattr(
            "capsella.export.ship.load_pt2", lambda path: (lambda images: torch.rand(len(images), 3), {})
        )
        answer = cli("export", trained, "--format", "pt2", "--out", tmp_path / "x.pt2")
        assert answer.code == 1
        assert "error: the exported network differs from PyTorch: largest activation difference" in answer.err
        assert not list(tmp_path.iterdir())
        most = ["--tolerance", 1.5, "--flips", 100]
        assert cli("export", trained, "--format", "pt2", "--out", tmp_path / "x.pt2", *most).code == 0

    def test_no_run(self, cli, tmp_path):
        assert "is not a run folder" in cli("export", tmp_path).err


class TestBench:
    def test_a_run_as_table_and_json(self, cli, trained, tmp_path):
        words = ["bench", trained, "--backends", "eager", "native", "--threads", 1, "--calls", 100]
        answer = cli(*words, "--out", tmp_path / "b.json")
        assert answer.code == 0, answer.err
        whole = json.loads((tmp_path / "b.json").read_text())
        (values,) = whole["networks"].values()
        assert values["threads"] == whole["environment"]["threads"] == 1
        assert f"{values['model']}, 1 thread;" in answer.out
        assert "training images of images-capsnet" in answer.out
        assert BACKENDS["eager"] in answer.out
        for name, row in values["backends"].items():
            latency = row["latency_ms"]
            assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"], name
            assert f"{latency['p50']:.2f}" in answer.out
            assert latency["calls"] == 100
            assert row["throughput"]["images_per_second"] > 0
            assert row["largest_difference_from_eager"] < 1e-4
        assert set(values["backends"]) | set(values["unavailable"]) == {"eager", "native"}

    def test_a_network_by_name(self, cli):
        answer = cli("bench", "hinton2018_cnn", "--backends", "eager", "native", "--calls", 100, "--json")
        values = json.loads(answer.out)["networks"]["hinton2018_cnn"]
        assert values["model"] == "hinton2018_cnn"
        assert values["size"] == [1, 32, 32]
        assert values["images"] == "random images, fresh weights"
        assert list(values["backends"]) == ["eager"]
        assert set(values["unavailable"]) == {"native"}  # a CNN has no routing

    def test_several_networks_go_on_where_they_stopped(self, cli, tmp_path, monkeypatch):
        made = []

        def tiny(name):
            made.append(name)
            if name == "sabour2017_cnn" and len(made) == 2:
                raise KeyboardInterrupt
            return *small(), "random images, fresh weights"

        monkeypatch.setattr("capsella.cli.bench._model_and_images", tiny)
        out, words = tmp_path / "b.json", ["--backends", "eager", "--calls", 100, "--threads", 1]
        names = ["sabour2017_capsnet", "sabour2017_cnn", "sabour2017_cn?"]
        cli("bench", *names, *words, "--out", out)
        first = json.loads(out.read_text())["networks"]
        assert list(first) == ["sabour2017_capsnet"]
        answer = cli("bench", *names, *words, "--out", out, "--resume")
        assert answer.code == 0, answer.err
        assert made == ["sabour2017_capsnet", "sabour2017_cnn", "sabour2017_cnn"]  # once each, but for the interruption
        assert "sabour2017_cnn: network 2 of 2" in answer.err
        values = json.loads(out.read_text())
        assert list(values["networks"]) == ["sabour2017_capsnet", "sabour2017_cnn"]
        assert values["networks"]["sabour2017_capsnet"] == first["sabour2017_capsnet"]
        assert values["command"].startswith("capsella bench sabour2017_capsnet sabour2017_cnn 'sabour2017_cn?' --back")

        answer = cli("bench", *names, *words[:-1], 2, "--out", out, "--resume")
        assert "b.json was measured with threads 1, not 2" in answer.err
        out.write_text(json.dumps(values | {"environment": {"cpu": "an abacus"}}))
        assert "was measured on another processor, an abacus" in (
            cli("bench", *names, *words, "--out", out, "--resume").err
        )
        out.write_text("[]")
        assert "b.json is no file of capsella bench" in cli("bench", *names, *words, "--out", out, "--resume").err

    def test_names_that_are_none(self, cli):
        assert "networks: must name at least one run or network" in cli("bench").err
        assert "networks: must match a registered network, got 'no*'" in cli("bench", "no*").err
        assert "resume: must come with --out" in cli("bench", "hinton2018_cnn", "--resume").err
        assert "did you mean sabour2017_capsnet" in cli("bench", "sabour2017_capsnt").err
        assert "backends: must be a registered name, got 'egaer'; did you mean eager" in (
            cli("bench", "hinton2018_cnn", "--backends", "egaer").err
        )
        assert "calls: must be at least 100" in cli("bench", "hinton2018_cnn", "--calls", 9, "--backends", "eager").err


def small():
    model = create_model("sabour2017_cnn", image_size=6)
    pixels = torch.randint(256, (5, 1, 6, 6), dtype=torch.uint8)
    return model, ImageSet(pixels, torch.zeros(5, dtype=torch.long), model.classes)


@needs_onnx
def test_onnx_runtime_in_float32_and_int8():
    before = torch.get_num_threads()
    result = bench(*small(), backends=["onnxruntime", "onnxruntime-int8"], threads=1, calls=100, batch_sizes=(1, 4))
    assert list(result.latencies) == ["onnxruntime", "onnxruntime-int8"]
    assert result.differences["onnxruntime"] < 1e-5 < result.differences["onnxruntime-int8"]
    assert torch.get_num_threads() == before


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("capsella.export.bench.find_spec", lambda name: None)
    result = bench(*small(), backends=["eager", "openvino"], threads=1, calls=100, batch_sizes=(1,))
    assert result.unavailable == {"openvino": "openvino is not installed"}


def test_openvino_agrees():
    pytest.importorskip("openvino", reason="needs openvino")
    assert bench(*small(), backends=["openvino"], calls=100, batch_sizes=(1,)).differences["openvino"] < 1e-4


@pytest.mark.parametrize(("answer", "difference"), [(0.9, r"0\.\d+"), (float("nan"), "nan")])
def test_a_backend_that_differs_has_no_speed(monkeypatch, answer, difference):
    monkeypatch.setitem(MAKERS, "native", lambda *_: lambda part: torch.full((len(part), 10), answer))
    result = bench(*small(), backends=["eager", "native"], calls=100, batch_sizes=(1,))
    assert list(result.latencies) == ["eager"]
    assert re.fullmatch(f"differs from eager by {difference}, more than 0.0001", result.unavailable["native"])


def test_what_cannot_be_measured():
    model, images = small()
    with pytest.raises(ValueError, match="backends: must name at least one, got none"):
        bench(model, images, backends=[])
    with pytest.raises(ValueError, match="threads: must be at least 1, got 0"):
        bench(model, images, threads=0)
    with pytest.raises(ValueError, match="images: must hold at least one, got none"):
        bench(model, images.subset([]))
