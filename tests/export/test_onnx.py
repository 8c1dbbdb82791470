"""ONNX files, in every precision, and the example that reads them without PyTorch."""

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
from capsella.errors import CapsellaError
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

from capsella.export import Tolerance, compare, usual_tolerance, write_float16, write_int8, write_onnx  # noqa: E402
from capsella.export.reduced import REDUCED  # noqa: E402

EXAMPLE = Path(capsella.__file__).parents[1] / "examples" / "onnx_inference.py"


def test_the_file_agrees_on_every_test_image(exported_onnx):
    parity = exported_onnx.parity
    assert parity.holds
    assert (parity.images, parity.flips) == (40, 0)
    assert parity.difference <= 1e-4
    assert parity.error < 60  # it has learned something: a network at chance agrees with anything


def test_the_routing_is_unrolled_into_standard_operators(exported_onnx):
    proto = onnx.load(exported_onnx.path)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 18)]
    assert not proto.functions
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds.count("Softmax") == 2  # one an iteration
    assert {"Loop", "Scan", "If"}.isdisjoint(kinds)


@pytest.mark.parametrize("batch", [1, 4])
def test_any_batch_size_in_the_file_and_in_use(exported_onnx, model, batch):
    proto = onnx.load(exported_onnx.path)
    for value in (proto.graph.input[0], proto.graph.output[0]):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
    images = torch.rand(batch, 1, 17, 17)
    torch.testing.assert_close(load_onnx(exported_onnx.path)(images), model(images).activations, atol=1e-5, rtol=0)


def test_the_decoder_is_left_out_unless_asked_for(exported_onnx, model, tmp_path):
    assert [value.name for value in onnx.load(exported_onnx.path).graph.output] == ["activations"]
    assert not any("decoder" in weight.name for weight in onnx.load(exported_onnx.path).graph.initializer)
    with pytest.raises(ValueError, match="reconstruction: must be False for a model without a decoder"):
        write_onnx(create_model("sabour2017_cnn"), tmp_path / "x.onnx", reconstruction=True)


def test_what_to_know_stands_in_the_file_and_beside_it(exported_onnx):
    about = read_onnx_description(exported_onnx.path)
    assert about == exported_onnx.description
    assert about["classes"] == list("0123456789")
    assert (about["model"], about["recipe"], about["opset"]) == ("sabour2017_capsnet", "tiny", 18)
    wanted = {"channels": 1, "height": 17, "width": 17, "range": [0.0, 1.0]}
    assert {key: about["input"][key] for key in wanted} == wanted
    beside = json.loads(exported_onnx.path.with_name("digits.onnx.json").read_text())
    assert beside == exported_onnx.to_dict()
    assert beside["parity"]["holds"] is True


def test_what_fails_the_check_is_not_written(model, splits, tmp_path, monkeypatch, exported_onnx):
    """The check reads the file: here, that of a network with other weights."""
    path = tmp_path / "digits.onnx"
    path.write_text("older")
    # The export itself takes long; what it would have written is there already.
    other = create_model("sabour2017_capsnet", image_size=17)
    monkeypatch.setattr(
        "capsella.export.ship.write_onnx", lambda model, file, **_: file.write_bytes(exported_onnx.path.read_bytes())
    )
    with pytest.raises(CapsellaError, match="differs from PyTorch: largest activation difference"):
        export_model(other, splits, path)
    assert path.read_text() == "older"
    assert [file.name for file in tmp_path.iterdir()] == ["digits.onnx"]


class TestInt8:
    @pytest.fixture(scope="class")
    def file(self, exported_onnx, splits, tmp_path_factory):
        path = tmp_path_factory.mktemp("int8") / "int8.onnx"
        return path, write_int8(exported_onnx.path, path, splits.train, exported_onnx.description)

    def test_it_agrees(self, file, model, splits):
        parity = compare(model, load_onnx(file[0]), splits.test, Tolerance(0.1, 5.0))
        assert parity.holds
        assert parity.difference > 1e-4  # it is no copy of the float32 file

    def test_convolutions_are_int8_and_routing_is_not(self, file, exported_onnx):
        proto = onnx.load(file[0])
        made_by = {name: node.op_type for node in proto.graph.node for name in node.output}
        inputs = {node.op_type: [made_by.get(name) for name in node.input[:2]] for node in proto.graph.node}
        assert inputs["Conv"] == ["DequantizeLinear", "DequantizeLinear"]
        assert all("DequantizeLinear" not in (inputs[kind]) for kind in ("MatMul", "Softmax"))
        assert file[0].stat().st_size < 0.35 * exported_onnx.path.stat().st_size

    def test_it_says_so(self, file):
        about = read_onnx_description(file[0])
        assert about == {**file[1], "int8_operators": list(REDUCED)}
        assert (about["precision"], about["calibration_images"], about["opset"]) == ("int8", 100, 18)

    def test_nothing_to_calibrate_on(self, exported_onnx, splits, tmp_path):
        with pytest.raises(ValueError, match="images: must hold at least one to calibrate on, got none"):
            write_int8(exported_onnx.path, tmp_path / "x", splits.train.subset([]), {})


@pytest.mark.parametrize("family", ["convnext", "dinov2"])
def test_dense_layers_of_a_transformer_are_reduced(family, tmp_path):
    """They read more than two dimensions, and are products of matrices in the file."""
    model = create_model("stem_linear", stem=str(saved(tmp_path / "stem", family)), image_size=42, classes=3).eval()
    images = torch.rand(16, 3, 42, 42, generator=torch.Generator().manual_seed(0))
    shown = ImageSet((255 * images).byte(), torch.zeros(16, dtype=torch.long), model.classes)
    about = write_onnx(model, tmp_path / "a.onnx")
    whole = sum(np.prod(one.dims) for one in onnx.load(tmp_path / "a.onnx").graph.initializer)
    expected = model(images).activations.detach()
    for name, kind, write, most in [
        ("half", onnx.TensorProto.FLOAT16, write_float16, 1e-2),
        ("int8", onnx.TensorProto.INT8, lambda *words: write_int8(*words[:2], shown, words[2]), 0.1),
    ]:
        write(tmp_path / "a.onnx", tmp_path / f"{name}.onnx", about)
        weights = onnx.load(tmp_path / f"{name}.onnx").graph.initializer
        assert sum(np.prod(one.dims) for one in weights if one.data_type == kind) > 0.7 * whole
        assert (load_onnx(tmp_path / f"{name}.onnx")(images) - expected).abs().max() < most


def test_a_file_tells_nothing_of_the_machine_that_wrote_it(exported_onnx):
    content = exported_onnx.path.read_bytes()
    assert str(Path(capsella.__file__).parents[1]).encode() not in content
    assert b"stack_trace" not in content


def test_float16_halves_convolutions_and_keeps_the_routing(exported_onnx, model, splits, tmp_path):
    path = tmp_path / "half.onnx"
    about = write_float16(exported_onnx.path, path, exported_onnx.description)
    assert (about["precision"], about["opset"]) == ("float16", 18)
    assert compare(model, load_onnx(path), splits.test, Tolerance(1e-2, 0.0)).holds
    kinds = {weight.name: weight.data_type for weight in onnx.load(path).graph.initializer}
    halved = {name for name, kind in kinds.items() if kind == onnx.TensorProto.FLOAT16}
    assert len(halved) == 4  # weight and bias of two convolutions
    assert any(kind == onnx.TensorProto.FLOAT and "capsule_layers" in name for name, kind in kinds.items())
    assert path.stat().st_size < 0.6 * exported_onnx.path.stat().st_size


TINY = {
    "sabour2017_capsnet": {
        "image_size": 17,
        "evenly_routed": True,
        "routing": DynamicRouting(1, leaky=True, bias=True),
    },
    "sabour2017_cnn": {"image_size": 8},
    "hinton2018_matrix_capsnet_small": {"image_size": 20, "crop": 19, "routing": EMRouting(2, early_sharpness=0.1)},
    "hinton2018_cnn": {"image_size": 10, "crop": 8},
    "sabour2017_multimnist_cnn": {"image_size": 16},
    "sabour2017_affnist_cnn": {"image_size": 8},
    "mazzia2021_efficient_capsnet": {"image_size": 13},
    "hahn2019_resnet20": {"image_size": 12, "width": 4, "types": 4},
    "tsai2020_resnet": {"image_size": 13, "types": 4},
    "zhao2021_cluster_capsnet": {"image_size": 8, "types": 2, "votes": 3, "pose": 4},
    "ribeiro2020_capsnet": {"image_size": 20, "routing": VariationalRouting(2)},
    "heinsen2019_capsnet": {"image_size": 29, "routing": HeinsenRouting(2)},
    "he2016_resnet10": {"image_size": 64, "width": 2},
    "forslov2018_emnet1_init1": {"image_size": 64},  # for all of the thesis: they are made of the same layers
}


# The large matrix network is made of the layers of the small one, and takes half a minute.
EVEN = ("hinton2018_matrix_capsnet_small", {"image_size": 17, "routing": UniformRouting()})


@pytest.mark.parametrize(("name", "options"), [*TINY.items(), EVEN])
def test_every_network_exports_and_takes_any_batch(name, options, tmp_path):
    """Small images and few iterations, of which one layer has a second: exporting takes time in proportion."""
    model = create_model(name, channels=3, classes=4, **options).eval()
    layers = list(getattr(model, "capsule_layers", []))
    for layer in layers[:1] + layers[2:] if len(layers) > 1 else []:  # the second is a convolution, where there is one
        if getattr(getattr(layer, "routing", None), "iterations", 1) > 1:
            layer.routing = dataclasses.replace(layer.routing, iterations=1)
    write_onnx(model, tmp_path / "x.onnx")
    run = load_onnx(tmp_path / "x.onnx")
    for batch in (1, 3):
        images = torch.rand(batch, 3, *model.image_size)
        with torch.no_grad():
            torch.testing.assert_close(run(images), model(images).activations, atol=1e-4, rtol=0)


def test_capsules_of_length_zero_are_no_nan(tmp_path):
    """The exporter's own optimiser drops an epsilon inside a square root."""
    model = create_model("sabour2017_capsnet", image_size=17, primary_relu=True).eval().requires_grad_(False)
    model.primary.conv.bias.fill_(-1e3)
    images = torch.rand(2, 1, 17, 17)
    expected = model(images).activations
    assert expected.isfinite().all()
    write_onnx(model, tmp_path / "x.onnx")
    torch.testing.assert_close(load_onnx(tmp_path / "x.onnx")(images), expected, atol=1e-6, rtol=0)


def test_the_example_needs_no_torch_and_predicts_as_the_run(exported_onnx, model, tmp_path):
    files = []
    for k in range(3):
        files.append(tmp_path / f"image{k}.png")
        pixels = torch.randint(256, (23 + k, 30), dtype=torch.uint8).numpy()  # to be cropped and resized
        Image.fromarray(pixels).save(files[-1])
    code = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['capsella'] = None; "  # an import of either then fails
        f"sys.argv = sys.argv[1:]; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    words = [sys.executable, "-c", code, "onnx_inference.py", exported_onnx.path, *files]
    answer = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""})
    assert answer.returncode == 0, answer.stderr
    rows = [line.split("\t") for line in answer.stdout.splitlines()]
    for row, prediction in zip(rows, predict_files(model, files), strict=True):
        assert row[:2] == [str(prediction.file), prediction.class_name]
        assert float(row[2]) == pytest.approx(float(prediction.activations.max()), abs=1e-5)


@pytest.fixture
def example():
    return runpy.run_path(str(EXAMPLE))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: png16(np.full((20, 20, 3), 3000)), "16 bits a channel in colour"),
        (lambda: planar(np.full((20, 20, 3), 3000)), "16 bits a channel in colour"),
        (lambda: tiff(np.full((20, 20), 3000, np.uint16), t262=0), "white stored as 0, with 16 bits"),
        (lambda: tiff(np.full((20, 20), 3000, np.uint32)), "32 bits without a sign"),
        (lambda: tiff(np.full((20, 20), 30, np.uint8), t339=2), "8 bits with a sign"),
    ],
)
def test_the_example_refuses_what_pillow_reads_otherwise(example, content, reason, tmp_path):
    (tmp_path / "x.image").write_bytes(content())
    about = {"channels": 3, "height": 16, "width": 16, "value_range": [0.0, 4095.0]}
    with pytest.raises(ValueError, match=f"this program cannot read it: {reason}"):
        example["prepare"](str(tmp_path / "x.image"), about)


def test_the_example_refuses_pages_and_values_that_are_not_finite(example, tmp_path):
    about = {"channels": 1, "height": 16, "width": 16, "value_range": [0.0, 1.0]}
    pages = [Image.new("L", (20, 20), grey) for grey in (10, 200)]
    pages[0].save(tmp_path / "x.tif", save_all=True, append_images=pages[1:])
    Image.fromarray(np.full((20, 20), np.nan, np.float32)).save(tmp_path / "y.tif")
    for name, reason in (("x.tif", "several pages or pictures"), ("y.tif", "values that are not finite")):
        with pytest.raises(ValueError, match=reason):
            example["prepare"](str(tmp_path / name), about)


def test_votes_in_bfloat16_have_the_limits_of_float16():
    short = {"image_size": 17, "classes": 3}
    for votes, most in (("bfloat16", 1e-2), ("float32", 1e-4)):
        model = create_model("hinton2018_matrix_capsnet_small", routing=EMRouting(votes=votes), **short)
        assert usual_tolerance(model, "float32").difference == most
        assert usual_tolerance(model, "int8").difference == 0.1


def test_a_description_says_what_a_file_does_not():
    model = create_model("sabour2017_cnn", image_size=17, classes=3)
    assert "not_in_this_file" not in describe_model(model)
    model.calibration = fit_calibration(torch.eye(3).repeat(3, 1) * 0.8 + 0.1, torch.arange(9) % 3)
    assert describe_model(model)["not_in_this_file"] == ["prediction sets"]


def test_the_parity_of_probabilities_is_measured():
    """A temperature makes more of a difference than the activations show."""
    model = create_model("sabour2017_cnn", image_size=17, classes=3).eval()
    pixels = torch.randint(256, (4, 1, 17, 17), dtype=torch.uint8)
    images = ImageSet(pixels, torch.zeros(4).long(), model.classes)
    assert compare(model, lambda part: model(part).activations.detach(), images, Tolerance(1, 100)).probability is None
    with torch.no_grad():
        a = model(images.images.float() / 255).activations
    model.calibration = fit_calibration(a.repeat(4, 1), a.argmax(1).repeat(4))
    apart = compare(model, lambda part: (model(part).activations.detach() - 0.01).clamp(0), images, Tolerance(1, 100))
    assert apart.probability > 0
    assert f"largest probability difference {apart.probability:.2g}" in str(apart)


@pytest.mark.parametrize("kind", ["deep", "transparent", "colour", "on its side"])
def test_the_example_prepares_images_as_training_does(example, kind, tmp_path):
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
def test_the_example_makes_the_same_probabilities(example, kind):
    model = create_model("sabour2017_capsnet", image_size=17, classes=3)
    fitted = fit_calibration(torch.rand(60, 3), torch.arange(60) % 3, prior=(0.5, -0.5, 0.0))
    model.calibration = dataclasses.replace(fitted, logits=kind)
    calibration = describe_model(model)["calibration"]
    for activations in (torch.tensor([0.2, 0.9, 0.4]), torch.tensor([0.0, 1.0, 0.3])):
        ours = example["probabilities"](activations.numpy(), calibration)
        np.testing.assert_allclose(ours, model.calibration.probabilities(activations), rtol=1e-6)


def test_the_example_names_a_file_that_it_cannot_read(example, exported_onnx, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(SystemExit, match=r"broken\.png: cannot identify image file"):
        example["main"](str(exported_onnx.path), [str(tmp_path / "broken.png")])


def test_the_example_refuses_what_it_cannot_prepare(example, tmp_path):
    Image.fromarray(np.full((8, 8), 3000, np.uint16)).save(tmp_path / "x.png")
    about = {"channels": 1, "height": 8, "width": 8, "value_range": None}
    with pytest.raises(ValueError, match="more than 8 bits a channel: this network was trained on 8"):
        example["prepare"](str(tmp_path / "x.png"), about)
    model = create_model("sabour2017_cnn", image_size=17, channels=2).eval()
    write_onnx(model, tmp_path / "pair.onnx")
    with pytest.raises(SystemExit, match="this program cannot prepare its images: turn upright"):
        example["main"](str(tmp_path / "pair.onnx"), [str(tmp_path / "x.png")])


def test_files_that_are_not_ours(tmp_path):
    path = tmp_path / "no.onnx"
    path.write_bytes(b"\xff no protobuf")
    with pytest.raises(CapsellaError, match=r"no\.onnx: ONNX Runtime cannot read it"):
        load_onnx(path)
    with pytest.raises(CapsellaError, match=r"no\.onnx: cannot be read as an ONNX file"):
        read_onnx_description(path)


def test_formats_and_precisions_that_are_not_there(model, splits, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="format: must be a registered name, got 'onx'; did you mean onnx"):
        export_model(model, splits, tmp_path / "x", format="onx")
    with pytest.raises(ValueError, match="precision: must be 'float32' for the format 'pt2', got 'int8'"):
        export_model(model, splits, tmp_path / "x", format="pt2", precision="int8")
    with pytest.raises(ValueError, match="precision: must be a registered name, got 'int4'; did you mean int8"):
        export_model(model, splits, tmp_path / "x", precision="int4")
    monkeypatch.setattr("capsella.errors.find_spec", lambda package: None)
    with pytest.raises(CapsellaError, match=r"an ONNX file needs onnx, onnxscript: pip install 'capsella\[export\]'"):
        write_onnx(model, tmp_path / "x")
