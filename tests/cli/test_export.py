"""`capsella export`."""

import json

import pytest
import torch
from jaxtyping import config

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
