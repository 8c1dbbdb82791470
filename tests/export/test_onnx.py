"""ONNX files in every precision, and folders whose program reads images without PyTorch."""

import csv
import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import capsella
from capsella.data.decoding import decode_files
from capsella.errors import ArgumentError, CapsellaError
from capsella.evaluation import PredictOptions, predict_table
from capsella.export import ExportImages, export_model, load_onnx
from capsella.image_options import CellCut, Preprocessing
from capsella.models import ImageClassifier, create_model
from capsella.models.inference import predict_with_scores
from capsella.routing import DynamicRouting, EMRouting, HeinsenRouting, UniformRouting, VariationalRouting
from capsella.uncertainty.ood import KIND, LABORATORY
from tests.data.deep_files import png16, tiff
from tests.export.odd_files import write_odd_files

onnx = pytest.importorskip("onnx", reason="needs the extra `export`")
pytest.importorskip("onnxscript", reason="needs the extra `export`")
pytest.importorskip("onnxruntime", reason="needs the extra `export`")

from capsella.export import Tolerance, compare, default_tolerance, predict, write_int8, write_onnx  # noqa: E402


def description(path):
    """What capsella wrote into an ONNX file."""
    return json.loads({entry.key: entry.value for entry in onnx.load(path).metadata_props}["capsella"])


class TestFolder:
    def test_every_test_image_agrees(self, exported_onnx):
        _, exported = exported_onnx
        parity = exported.parity
        assert parity.holds
        assert (parity.images, parity.flips, parity.ood_flips) == (40, 0, 0)
        assert max(parity.difference, parity.probability) <= 1e-4
        assert parity.error < 60  # it has learned something: a network at chance agrees with anything
        assert exported.files.files == 20
        assert 0 < exported.files.milliseconds < 1000

    def test_the_graph_ends_in_probabilities_and_the_ood_score(self, exported_onnx, splits):
        model, exported = exported_onnx
        proto = onnx.load(exported.path / "model.onnx")
        names = ["activations", "probabilities", "ood_score"]
        assert [value.name for value in proto.graph.output] == names == list(exported.description["outputs"])
        images = splits.test.images[:5].float() / 255
        with torch.no_grad():
            output, scores = predict_with_scores(model, images, model.ood_detector)
        run = {name: load_onnx(exported.path / "model.onnx", output=name)(images) for name in names}
        expected = model.calibration.probabilities(output.activations)
        torch.testing.assert_close(run["probabilities"].double(), expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(run["ood_score"], scores.amax(1), atol=0.01, rtol=0.01)
        strange = torch.rand(5, 1, 17, 17)
        threshold = exported.description["thresholds"]["ood_score"]
        assert (load_onnx(exported.path / "model.onnx", output="ood_score")(strange) > threshold).all()

    def test_the_folder_describes_itself_and_capsella_opens_it(self, exported_onnx):
        model, exported = exported_onnx
        about = description(exported.path / "model.onnx")
        beside = json.loads((exported.path / "model.json").read_text())
        assert {name: beside[name] for name in about} == about == json.loads(json.dumps(exported.description))
        assert (about["classes"], about["recipe"]) == (list("0123456789"), "tiny")
        images = torch.rand(2, 1, 17, 17)
        again = ImageClassifier.from_pretrained(exported.path).eval()
        with torch.no_grad():
            torch.testing.assert_close(again(images).activations, model(images).activations)
        assert again.ood_detector.digest == model.ood_detector.digest

    def test_standard_operators_any_batch_and_no_decoder(self, plain_onnx):
        path, about = plain_onnx
        proto = onnx.load(path)
        assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 18)]
        kinds = [node.op_type for node in proto.graph.node]
        assert kinds.count("Softmax") == 2  # one for each iteration
        assert {"Loop", "Scan", "If"}.isdisjoint(kinds)
        assert not proto.functions
        assert [value.name for value in proto.graph.output] == ["activations"]
        assert not any("decoder" in weight.name for weight in proto.graph.initializer)
        assert about["thresholds"]["ood_score"] is None

    def test_the_file_holds_no_paths_of_the_machine(self, plain_onnx):
        content = plain_onnx[0].read_bytes()
        assert str(Path(capsella.__file__).parents[1]).encode() not in content
        assert b"stack_trace" not in content

    def test_a_file_that_fails_the_check_is_not_written(self, splits, tmp_path, monkeypatch, plain_onnx):
        """The check reads the file: here, that of a network with other weights."""
        (tmp_path / "digits").mkdir()
        (tmp_path / "digits" / "model.json").write_text("older")  # of an earlier export
        other = create_model("sabour2017_capsnet", image_size=17)
        content = plain_onnx[0].read_bytes()  # exporting takes long
        monkeypatch.setattr("capsella.export.ship.write_onnx", lambda model, file, **_: file.write_bytes(content))
        with pytest.raises(CapsellaError, match="PyTorch"):
            export_model(other, ExportImages(splits.train, splits.test), tmp_path / "digits")
        assert [file.read_text() for file in (tmp_path / "digits").iterdir()] == ["older"]
        assert [file.name for file in tmp_path.iterdir()] == ["digits"]
        (tmp_path / "cells").mkdir()
        for folder, file in (("digits", "config.json"), ("cells", "image.png")):  # a run; somebody's images
            (tmp_path / folder / file).write_text("")
            with pytest.raises(ArgumentError, match="new folder"):
                export_model(other, ExportImages(splits.train, splits.test), tmp_path / folder)


class TestReducedPrecision:
    def test_int8_quantises_convolutions_and_keeps_the_routing(self, plain_onnx, model, splits, tmp_path):
        path, (source, about) = tmp_path / "int8.onnx", plain_onnx
        written = write_int8(source, path, splits.train, about)
        parity = compare(model, {"activations": load_onnx(path)}, splits.test, Tolerance(0.1, 5.0))
        assert parity.holds
        assert parity.difference > 1e-4  # it is no copy of the float32 file
        proto = onnx.load(path)
        made_by = {name: node.op_type for node in proto.graph.node for name in node.output}
        inputs = {node.op_type: [made_by.get(name) for name in node.input[:2]] for node in proto.graph.node}
        assert inputs["Conv"] == ["DequantizeLinear", "DequantizeLinear"]
        assert all("DequantizeLinear" not in (inputs[kind]) for kind in ("MatMul", "Softmax"))
        assert path.stat().st_size < 0.35 * source.stat().st_size
        assert (written["precision"], written["calibration_images"], written["opset"]) == ("int8", 100, 18)
        with pytest.raises(ArgumentError):
            write_int8(source, tmp_path / "x", splits.train.subset([]), {})

    def test_votes_in_bfloat16_have_wider_limits(self):
        short = {"image_size": 17, "classes": 3}
        for votes, most in (("bfloat16", 1e-2), ("float32", 1e-4)):
            model = create_model("hinton2018_matrix_capsnet_small", routing=EMRouting(votes=votes), **short)
            assert default_tolerance(model, "float32").difference == most
            assert default_tolerance(model, "int8").difference == 0.1


# One network of each kind of layer; the large ones of a paper are made of the layers of the small ones.
NETWORKS = [
    (
        "sabour2017_capsnet",
        {"image_size": 17, "uniform_primary_couplings": True, "routing": DynamicRouting(1, leaky=True, bias=True)},
    ),
    (
        "hinton2018_matrix_capsnet_small",
        {"image_size": 20, "crop": 19, "routing": EMRouting(2, early_likelihood_weight=0.1)},
    ),
    ("hinton2018_cnn", {"image_size": 10, "crop": 8}),
    ("sabour2017_multimnist_cnn", {"image_size": 16}),
    ("mazzia2021_efficient_capsnet", {"image_size": 13}),
    ("zhao2021_cluster_capsnet", {"image_size": 8, "types": 2, "votes": 3, "pose": 4}),
    ("he2016_resnet10", {"image_size": 64, "width": 2}),
]
SLOW_NETWORKS = [
    ("hinton2018_matrix_capsnet_small", {"image_size": 17, "routing": UniformRouting()}),
    ("hahn2019_resnet20", {"image_size": 12, "width": 4, "types": 4}),
    ("tsai2020_resnet", {"image_size": 13, "types": 4}),
    ("ribeiro2020_capsnet", {"image_size": 20, "routing": VariationalRouting(2)}),
    ("heinsen2019_capsnet", {"image_size": 29, "routing": HeinsenRouting(2)}),
    ("forslov2018_emnet1_init1", {"image_size": 64, "types": 4, "stem_width": 4, "front_width": 8, "caps_width": 8}),
]


@pytest.mark.parametrize(
    ("name", "options"), [*NETWORKS, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_NETWORKS)]
)
def test_every_kind_of_network_exports_and_takes_any_batch(name, options, tmp_path):
    """Only the second capsule layer, a convolution where there is one, has two iterations: exporting takes time."""
    model = create_model(name, channels=3, classes=4, **options).eval()
    layers = list(getattr(model, "capsule_layers", []))
    for layer in layers[:1] + layers[2:] if len(layers) > 1 else []:
        if getattr(getattr(layer, "routing", None), "iterations", 1) > 1:
            layer.routing = dataclasses.replace(layer.routing, iterations=1)
    write_onnx(model, tmp_path / "x.onnx")
    run = load_onnx(tmp_path / "x.onnx")
    for batch in (1, 3):
        images = torch.rand(batch, 3, *model.image_size)
        with torch.no_grad():
            torch.testing.assert_close(run(images), model(images).activations, atol=1e-4, rtol=0)


def test_capsules_of_length_zero_are_not_nan(tmp_path):
    """The exporter's own optimiser drops an epsilon inside a square root."""
    model = create_model("sabour2017_capsnet", image_size=17, primary_relu=True).eval().requires_grad_(False)
    model.primary.conv.bias.fill_(-1e3)
    images = torch.rand(2, 1, 17, 17)
    expected = model(images).activations
    assert expected.isfinite().all()
    write_onnx(model, tmp_path / "x.onnx")
    torch.testing.assert_close(load_onnx(tmp_path / "x.onnx")(images), expected, atol=1e-6, rtol=0)


def test_what_a_format_or_a_network_lacks(model, splits, tmp_path, monkeypatch):
    with pytest.raises(ArgumentError) as error:
        export_model(model, ExportImages(splits.train, splits.test), tmp_path / "x", format="pt2", precision="int8")
    assert error.value.argument == "precision"
    for output in ("probabilities", "ood_score"):
        with pytest.raises(ArgumentError):
            write_onnx(create_model("sabour2017_cnn"), tmp_path / "x.onnx", outputs=("activations", output))
    monkeypatch.setattr("capsella.errors.find_spec", lambda package: None)
    with pytest.raises(CapsellaError, match=r"capsella\[export\]"):
        write_onnx(model, tmp_path / "x")


class TestProgram:
    """predict.py of an exported folder: without PyTorch, and without capsella."""

    def test_it_predicts_as_capsella(self, exported_onnx, splits, tmp_path):
        """Over odd files, in a process that can import neither."""
        model, exported = exported_onnx
        write_odd_files(tmp_path / "odd")
        (tmp_path / "linked").mkdir()
        for name in ("café.png", os.fsdecode(b"caf\xe9.png"), ".hidden.png"):
            Image.new("L", (9, 9)).save(tmp_path / "linked" / name)
        (tmp_path / "odd" / "link").symlink_to(tmp_path / "linked")
        for number, (pixels,) in enumerate(splits.test.images[:5]):
            Image.fromarray((pixels // 2).numpy()).save(tmp_path / "odd" / f"dim {number}.png")
        code = (
            "import sys; sys.modules['torch'] = sys.modules['capsella'] = sys.modules['scipy'] = None; "
            "sys.path.insert(0, sys.argv[1]); import predict; predict.main(sys.argv[2:])"
        )
        words = [sys.executable, "-c", code, exported.path, tmp_path / "odd"]
        answer = subprocess.run(
            words,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            env={**os.environ, "PYTHONPATH": "", "PYTHONIOENCODING": "latin-1"},
        )
        assert answer.returncode == 0, answer.stderr
        rows = {row["file"]: row for row in csv.DictReader(io.StringIO(answer.stdout))}
        predict_table(model, [tmp_path / "odd"], tmp_path / "p.csv", PredictOptions(workers=0))
        with (tmp_path / "p.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            expected = {row["file"]: row for row in csv.DictReader(file)}
        assert sum("caf" in file for file in rows) == 2
        assert rows.keys() == expected.keys()
        for file, row in expected.items():
            found = rows[file]
            assert bool(found["error"]) == bool(row["error"]), (file, found["error"], row["error"])
            assert [found[name] for name in ("class", "in_distribution")] == [row["class"], row["in_distribution"]]
            assert found["ood_reason"] == row["ood_reason"].partition(" (")[0]
            for name in () if row["error"] else (*model.classes, "probability"):
                assert float(found[name]) == pytest.approx(float(row[name]), abs=1e-4)
        assert len([row for row in rows.values() if not row["error"]]) > 12
        assert {row["ood_reason"] for row in rows.values()} >= {LABORATORY, KIND}

    @pytest.mark.parametrize(
        ("channels", "value_range", "fit"),
        [(1, None, "crop"), (3, (100.0, 4000.0), "pad"), (1, (0.0, 4095.0), "squash")],
    )
    def test_it_reads_files_as_capsella(self, channels, value_range, fit, tmp_path):
        about = {"input": {"channels": channels, "height": 16, "width": 20}, "value_range": value_range, "fit": fit}
        files = write_odd_files(tmp_path / "odd", 4095)
        more = {
            "clear deep.png": png16(np.full((20, 20, 4), 3000)),
            "other order.tif": tiff(np.arange(400, dtype=np.uint16).reshape(20, 20) * 9, ">"),
            "colour.tif": tiff(np.arange(1200, dtype=np.uint16).reshape(20, 20, 3) * 3, ">"),
            "bright.tif": tiff(np.full((20, 20), 60_000, np.uint16)),  # most values are outside the range
        }
        for name, content in more.items():
            (tmp_path / "odd" / name).write_bytes(content)
            files.append(tmp_path / "odd" / name)
        preprocessing = Preprocessing((16, 20), channels, value_range, fit=fit)
        chunk = next(iter(decode_files(map(str, files), preprocessing, chunk=100)))
        pixels, read = iter(chunk.pixels), 0
        for file, loss in zip(files, chunk.results, strict=True):
            if not isinstance(loss, str):
                expected = next(pixels)
                if loss.outside <= 0.5:
                    np.testing.assert_array_equal(predict.read_image(file, about), expected, str(file))
                    read += 1
                    continue
            with pytest.raises((ValueError, OSError, SyntaxError)):
                predict.read_image(file, about)
        assert read > (8 if value_range is None else 15)

    def test_networks_whose_images_it_cannot_read_come_without_it(self, splits, tmp_path):
        model = create_model("sabour2017_cnn", image_size=17).eval()
        model.cut = CellCut(matched=False, radius=4.0)
        exported = export_model(model, ExportImages(splits.train, splits.test), tmp_path / "cut")
        assert exported.files is None
        assert sorted(file.name for file in exported.path.iterdir()) == [
            "model.json",
            "model.onnx",
            "model.safetensors",
        ]
