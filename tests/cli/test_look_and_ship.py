"""`capsella explore`, `export` and `bench`."""

import json
from types import SimpleNamespace

import pytest
from jaxtyping import config
from PIL import Image

from capsella.bench.backends import BACKENDS


class TestExplore:
    @pytest.fixture
    def opened(self, monkeypatch, tmp_path):
        """Names of runs that were opened, and calls of `capsella train`; nothing is trained, loaded or served."""
        opened, trained = [], []
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("capsella.cli.train.run", trained.append)
        monkeypatch.setattr(
            "capsella.training.trained.open_runs_with_capsules",
            lambda paths: {str(path): SimpleNamespace(adapted=None, model=SimpleNamespace(cut=None)) for path in paths},
        )
        monkeypatch.setattr("capsella.web.server.check_port", lambda *_: None)
        monkeypatch.setattr("capsella.web.share.split_cnn", lambda runs: (runs, None))
        path = "capsella.web.served_run.open_served_run"
        monkeypatch.setattr(path, lambda run, name, images, cnn: opened.append(name))
        monkeypatch.setattr("capsella.web.server.serve", lambda subjects, **options: None)
        return opened, trained

    def test_without_a_run_the_demo_is_trained_only_if_there_is_none(self, cli, opened, tmp_path):
        names, trained = opened
        assert cli("explore").code == 0
        assert trained == [["demo", "--out", "runs/demo"]]
        (tmp_path / "runs" / "demo").mkdir(parents=True)
        (tmp_path / "runs" / "demo" / "model.safetensors").touch()
        assert cli("explore").out == ""
        assert cli("explore", "runs/a", "runs/b").out == ""
        assert "cell_radius" in cli("explore", "runs/a", "--cell-radius", 20).err
        assert (names, len(trained)) == (["runs/demo", "runs/demo", "runs/a", "runs/b"], 1)

    def test_pictures_of_images(self, cli, trained, images, broken, tmp_path):
        file, out = images / "rows" / "rows00.png", tmp_path / "why"
        answer = cli("explore", trained, "--data", broken, file, "--skip-broken", "--out", out)
        assert answer.code == 0, answer.err
        assert str(broken) in answer.err
        assert answer.out.split() == [str(out / f"rows00_{view}.png") for view in ("explained", "votes")]
        with Image.open(out / "rows00_explained.png") as picture:
            assert min(picture.size) > 300
        assert cli("explore", trained, "--data", broken, "--out", out).code == 1
        assert cli("explore", trained, "--out", out).code == 1


class TestExport:
    @pytest.fixture(autouse=True)
    def _without_shape_checks(self):
        """While torch.export traces, sizes are symbols, which are no int to the annotations' checks."""
        config.update("jaxtyping_disable", True)
        yield
        config.update("jaxtyping_disable", False)

    def test_onnx(self, cli, copied):
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package, reason="needs the extra `export`")
        images, run = copied
        answer = cli("export", run)
        assert answer.code == 0, answer.err
        described = json.loads((run / "export" / "model.json").read_text())
        assert described["parity"]["images"] == 6
        assert "images" not in described
        assert described["classes"] == ["columns", "rings", "rows"]
        words = [run / "export", images, "--ood-false-positive-rate", 0]
        assert cli("predict", *words).out == cli("predict", run, *words[1:]).out
        assert cli("evaluate", run / "export").code == 1
        strict = cli("export", run, "--tolerance", 0, "--flips", 0, "--out", run / "strict")
        assert strict.code == 1
        assert "(at most 0)" in strict.err
        assert not (run / "strict").exists()
        (run / "result.json").unlink()  # as in the final run of a comparison with folds
        answer = cli("export", run, "--format", "pt2")
        assert "checked on validation images" in answer.err
        assert "no test errors" in json.loads((run / "export-pt2" / "model.json").read_text())["images"]


class TestBench:
    def test_a_run_as_table_and_json(self, cli, trained, tmp_path):
        words = ["bench", trained, "--backends", "eager", "native", "--threads", 1, "--calls", 100]
        answer = cli(*words, "--out", tmp_path / "b.json")
        assert answer.code == 0, answer.err
        (values,) = json.loads((tmp_path / "b.json").read_text())["networks"].values()
        assert BACKENDS["eager"] in answer.out
        for name, row in values["backends"].items():
            latency = row["latency_ms"]
            assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"], name
            assert row["throughput"]["images_per_second"] > 0
            assert row["largest_difference_from_eager"] < 1e-4
        assert set(values["backends"]) | set(values["unavailable"]) == {"eager", "native"}
