"""`capsella explore`, `export` and `bench`."""

import json
from types import SimpleNamespace

import pytest
import torch
from jaxtyping import config
from PIL import Image

from capsella.bench.backends import BACKENDS
from capsella.data import ImageSet
from capsella.models import create_model


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
        (run / "result.json").unlink()  # as in the final run of a comparison with folds
        answer = cli("export", run, "--format", "pt2")
        assert "checked on validation images" in answer.err
        assert "no test errors" in json.loads((run / "export-pt2" / "model.json").read_text())["images"]

    def test_a_file_that_differs_is_not_written(self, cli, trained, tmp_path, monkeypatch):
        different = (lambda images: torch.rand(len(images), 3), {})
        monkeypatch.setattr("capsella.export.ship.load_pt2", lambda path, output: different)
        words = ("export", trained, "--format", "pt2", "--out", tmp_path / "x")
        answer = cli(*words)
        assert (answer.code, "differs from PyTorch" in answer.err) == (1, True)
        assert not list(tmp_path.iterdir())
        assert cli(*words, "--tolerance", 1.5, "--flips", 100).code == 0


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

    def test_the_file_of_several_networks_holds_what_was_measured(self, cli, tmp_path, monkeypatch):
        made = []

        def tiny(name):
            made.append(name)
            if len(made) == 2:
                raise KeyboardInterrupt
            model = create_model("sabour2017_cnn", image_size=6)
            pixels = torch.randint(256, (5, 1, 6, 6), dtype=torch.uint8)
            return model, ImageSet(pixels, torch.zeros(5, dtype=torch.long), model.classes), "random images"

        monkeypatch.setattr("capsella.bench.backends.load_with_images", tiny)
        out, names = tmp_path / "b.json", ["sabour2017_capsnet", "sabour2017_cnn", "sabour2017_cn?"]
        words = ["bench", *names, "--backends", "eager", "--calls", 100, "--seconds", 0.3, "--out", out]
        assert cli(*words, "--threads", 1).code == 130
        assert made == ["sabour2017_capsnet", "sabour2017_cnn"]
        assert list(json.loads(out.read_text())["networks"]) == ["sabour2017_capsnet"]

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (("sabour2017_capsnt",), "did you mean sabour2017_capsnet"),
            (("hinton2018_cnn", "--backends", "egaer"), "did you mean eager"),
        ],
    )
    def test_errors(self, cli, words, text):
        answer = cli("bench", *words)
        assert answer.code in (1, 2)
        assert text in " ".join(answer.err.replace("│", " ").split())
