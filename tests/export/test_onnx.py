"""ONNX files in every precision, and the example that reads them without PyTorch."""

import dataclasses
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import capsella
from capsella.data import ImageSet
from capsella.data.reading import read_image
from capsella.errors import ArgumentError, CapsellaError
from capsella.evaluation import predict_files
from capsella.export import export_model, load_onnx, read_onnx_description
from capsella.export.graph import describe_model
from capsella.models import create_model
from capsella.routing import DynamicRouting, EMRouting, HeinsenRouting, UniformRouting, VariationalRouting
from capsella.uncertainty import fit_calibration
from tests.data.deep_files import planar, png16, tiff
from tests.models.test_backbones import saved

onnx = pytest.importorskip("onnx", reason="needs the extra `export`")
pytest.importorskip("onnxscript", reason="needs the extra `export`")
pytest.importorskip("onnxruntime", reason="needs the extra `export`")

from PIL import Image  # noqa: E402

from capsella.export import Tolerance, compare, default_tolerance, write_int8, write_onnx  # noqa: E402

EXAMPLE = Path(capsella.__file__).parents[1] / "examples" / "onnx_inference.py"


class TestFloat32:
    def test_the_file_agrees_on_every_test_image(self, exported_onnx):
        parity = exported_onnx.parity
        assert parity.holds
        assert (parity.images, parity.flips) == (40, 0)
        assert parity.difference <= 1e-4
        assert parity.error < 60  # it has learned something: a network at chance agrees with anything

    def test_standard_operators_any_batch_and_no_decoder(self, exported_onnx):
        proto = onnx.load(exported_onnx.path)
        assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 18)]
        kinds = [node.op_type for node in proto.graph.node]
        assert kinds.count("Softmax") == 2  # one for each iteration
        assert {"Loop", "Scan", "If"}.isdisjoint(kinds)
        assert not proto.functions
        assert [value.name for value in proto.graph.output] == ["activations"]
        for value in (proto.graph.input[0], proto.graph.output[0]):
            assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
        assert not any("decoder" in weight.name for weight in proto.graph.initializer)

    def test_the_description_is_in_the_file_and_beside_it(self, exported_onnx):
        about = read_onnx_description(exported_onnx.path)
        assert about == exported_onnx.description
        assert about["classes"] == list("0123456789")
        assert (about["model"], about["recipe"], about["opset"]) == ("sabour2017_capsnet", "tiny", 18)
        wanted = {"channels": 1, "height": 17, "width": 17, "range": [0.0, 1.0]}
        assert {key: about["input"][key] for key in wanted} == wanted
        beside = json.loads(exported_onnx.path.with_name("digits.onnx.json").read_text())
        assert beside == exported_onnx.to_dict()

    def test_the_file_holds_no_paths_of_the_machine(self, exported_onnx):
        content = exported_onnx.path.read_bytes()
        assert str(Path(capsella.__file__).parents[1]).encode() not in content
        assert b"stack_trace" not in content

    def test_a_file_that_fails_the_check_is_not_written(self, splits, tmp_path, monkeypatch, exported_onnx):
        """The check reads the file: here, that of a network with other weights."""
        path = tmp_path / "digits.onnx"
        path.write_text("older")
        other = create_model("sabour2017_capsnet", image_size=17)
        content = exported_onnx.path.read_bytes()  # exporting takes long
        monkeypatch.setattr("capsella.export.ship.write_onnx", lambda model, file, **_: file.write_bytes(content))
        with pytest.raises(CapsellaError, match="PyTorch"):
            export_model(other, splits, path)
        assert path.read_text() == "older"
        assert [file.name for file in tmp_path.iterdir()] == ["digits.onnx"]


class TestReducedPrecision:
    def test_int8_quantises_convolutions_and_keeps_the_routing(self, exported_onnx, model, splits, tmp_path):
        path = tmp_path / "int8.onnx"
        written = write_int8(exported_onnx.path, path, splits.train, exported_onnx.description)
        parity = compare(model, load_onnx(path), splits.test, Tolerance(0.1, 5.0))
        assert parity.holds
        assert parity.difference > 1e-4  # it is no copy of the float32 file
        proto = onnx.load(path)
        made_by = {name: node.op_type for node in proto.graph.node for name in node.output}
        inputs = {node.op_type: [made_by.get(name) for name in node.input[:2]] for node in proto.graph.node}
        assert inputs["Conv"] == ["DequantizeLinear", "DequantizeLinear"]
        assert all("DequantizeLinear" not in (inputs[kind]) for kind in ("MatMul", "Softmax"))
        assert path.stat().st_size < 0.35 * exported_onnx.path.stat().st_size
        about = read_onnx_description(path)
        assert about == written
        assert (about["precision"], about["calibration_images"], about["opset"]) == ("int8", 100, 18)
        with pytest.raises(ArgumentError):
            write_int8(exported_onnx.path, tmp_path / "x", splits.train.subset([]), {})

    def test_dense_layers_of_a_transformer_are_reduced(self, tmp_path):
        """They read more than two dimensions, and are products of matrices in the file."""
        folder = saved(tmp_path / "backbone", "dinov2")
        model = create_model("stem_linear", backbone=str(folder), image_size=42, classes=3).eval()
        images = torch.rand(8, 3, 42, 42, generator=torch.Generator().manual_seed(0))
        shown = ImageSet((255 * images).byte(), torch.zeros(8, dtype=torch.long), model.classes)
        about = write_onnx(model, tmp_path / "a.onnx")
        whole = sum(np.prod(weight.dims) for weight in onnx.load(tmp_path / "a.onnx").graph.initializer)
        expected = model(images).activations.detach()
        write_int8(tmp_path / "a.onnx", tmp_path / "int8.onnx", shown, about)
        weights = onnx.load(tmp_path / "int8.onnx").graph.initializer
        reduced = sum(np.prod(weight.dims) for weight in weights if weight.data_type == onnx.TensorProto.INT8)
        assert reduced > 0.7 * whole
        assert (load_onnx(tmp_path / "int8.onnx")(images) - expected).abs().max() < 0.1

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
        {"image_size": 17, "evenly_routed": True, "routing": DynamicRouting(1, leaky=True, bias=True)},
    ),
    ("hinton2018_matrix_capsnet_small", {"image_size": 20, "crop": 19, "routing": EMRouting(2, early_sharpness=0.1)}),
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
    for batch in (0, 1, 3):
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


def test_the_description_names_what_the_file_lacks():
    model = create_model("sabour2017_cnn", image_size=17, classes=3)
    assert "not_in_this_file" not in describe_model(model)
    model.calibration = fit_calibration(torch.eye(3).repeat(3, 1) * 0.8 + 0.1, torch.arange(9) % 3)
    assert describe_model(model)["not_in_this_file"] == ["prediction sets"]


def test_files_of_others(tmp_path):
    path = tmp_path / "no.onnx"
    path.write_bytes(b"\xff no protobuf")
    for read in (load_onnx, read_onnx_description):
        with pytest.raises(CapsellaError, match=r"no\.onnx"):
            read(path)


def test_formats_and_precisions_that_do_not_exist(model, splits, tmp_path, monkeypatch):
    for argument, options in [
        ("format", {"format": "onx"}),
        ("precision", {"format": "pt2", "precision": "int8"}),
        ("precision", {"precision": "int4"}),
    ]:
        with pytest.raises(ArgumentError) as error:
            export_model(model, splits, tmp_path / "x", **options)
        assert error.value.argument == argument
    with pytest.raises(ValueError, match="reconstruction"):
        write_onnx(create_model("sabour2017_cnn"), tmp_path / "x.onnx", reconstruction=True)
    monkeypatch.setattr("capsella.errors.find_spec", lambda package: None)
    with pytest.raises(CapsellaError, match=r"capsella\[export\]"):
        write_onnx(model, tmp_path / "x")


class TestExample:
    """`examples/onnx_inference.py`: without PyTorch, and without capsella."""

    @pytest.fixture
    def example(self):
        return runpy.run_path(str(EXAMPLE))

    def test_it_predicts_as_the_run(self, exported_onnx, model, tmp_path):
        files = []
        for k in range(3):
            files.append(tmp_path / f"image{k}.png")
            pixels = torch.randint(256, (23 + k, 30), dtype=torch.uint8).numpy()  # to be cropped and resized
            Image.fromarray(pixels).save(files[-1])
        code = (
            "import runpy, sys; sys.modules['torch'] = sys.modules['capsella'] = None; "  # importing either now fails
            f"sys.argv = sys.argv[1:]; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
        )
        words = [sys.executable, "-c", code, "onnx_inference.py", exported_onnx.path, *files]
        answer = subprocess.run(
            words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""}
        )
        assert answer.returncode == 0, answer.stderr
        rows = [line.split("\t") for line in answer.stdout.splitlines()]
        for row, prediction in zip(rows, predict_files(model, files), strict=True):
            assert row[:2] == [str(prediction.file), prediction.class_name]
            assert float(row[2]) == pytest.approx(float(prediction.activations.max()), abs=1e-5)

    @pytest.mark.parametrize("kind", ["deep", "transparent", "colour", "on its side"])
    def test_it_prepares_images_as_training_does(self, example, kind, tmp_path):
        path, random = tmp_path / "x.png", np.random.default_rng(0)
        about = {"channels": 1, "height": 16, "width": 16, "value_range": [0.0, 4095.0]}
        if kind == "deep":  # hot pixels, which must not smear into their neighbours
            values = random.integers(4096, size=(48, 48)).astype(np.uint16)
            values[random.integers(48, size=20), random.integers(48, size=20)] = 65535
            Image.fromarray(values).save(path)
        elif kind == "transparent":
            values = random.integers(256, size=(40, 30, 4)).astype(np.uint8)
            Image.fromarray(values, "RGBA").save(path)
        else:
            exif = Image.Exif()
            exif[0x0112] = 6 if kind == "on its side" else 1
            Image.fromarray(random.integers(256, size=(40, 30, 3)).astype(np.uint8)).save(path, exif=exif)
        expected = read_image(path, (16, 16), 1, value_range=(0.0, 4095.0))[None].float() / 255
        assert np.abs(example["prepare"](str(path), about) - expected.numpy()).max() < 1e-6

    @pytest.mark.parametrize("kind", ["log", "logit"])
    def test_it_makes_the_same_probabilities(self, example, kind):
        model = create_model("sabour2017_capsnet", image_size=17, classes=3)
        fitted = fit_calibration(torch.rand(60, 3), torch.arange(60) % 3, prior=(0.5, -0.5, 0.0))
        model.calibration = dataclasses.replace(fitted, logits=kind)
        calibration = describe_model(model)["calibration"]
        for activations in (torch.tensor([0.2, 0.9, 0.4]), torch.tensor([0.0, 1.0, 0.3])):
            ours = example["probabilities"](activations.numpy(), calibration)
            np.testing.assert_allclose(ours, model.calibration.probabilities(activations), rtol=1e-6)

    def test_it_refuses_files_that_pillow_reads_otherwise(self, example, tmp_path):
        pages = [Image.new("L", (20, 20), grey) for grey in (10, 200)]
        pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
        Image.fromarray(np.full((20, 20), np.nan, np.float32)).save(tmp_path / "nan.tif")
        for name, content in {
            "deep.png": png16(np.full((20, 20, 3), 3000)),
            "planar.tif": planar(np.full((20, 20, 3), 3000)),
            "inverted.tif": tiff(np.full((20, 20), 3000, np.uint16), t262=0),
            "unsigned.tif": tiff(np.full((20, 20), 3000, np.uint32)),
            "signed.tif": tiff(np.full((20, 20), 30, np.uint8), t339=2),
        }.items():
            (tmp_path / name).write_bytes(content)
        about = {"channels": 3, "height": 16, "width": 16, "value_range": [0.0, 4095.0]}
        for path in tmp_path.iterdir():
            with pytest.raises(ValueError, match="this program cannot read it"):
                example["prepare"](str(path), about)
        Image.fromarray(np.full((8, 8), 3000, np.uint16)).save(tmp_path / "deep.png")
        with pytest.raises(ValueError, match="8 bits"):
            example["prepare"](str(tmp_path / "deep.png"), about | {"value_range": None})

    def test_it_names_broken_files_and_refuses_pairs(self, example, exported_onnx, tmp_path):
        (tmp_path / "broken.png").write_bytes(b"no image")
        with pytest.raises(SystemExit, match=r"broken\.png"):
            example["main"](str(exported_onnx.path), [str(tmp_path / "broken.png")])
        proto = onnx.load(exported_onnx.path)
        (entry,) = [entry for entry in proto.metadata_props if entry.key == "capsella"]
        about = json.loads(entry.value)
        about["input"]["channels"] = 2
        entry.value = json.dumps(about)
        onnx.save_model(proto, str(tmp_path / "pair.onnx"))
        with pytest.raises(SystemExit, match=r"pair\.onnx"):
            example["main"](str(tmp_path / "pair.onnx"), ["x.png"])
