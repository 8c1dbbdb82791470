"""`torch.export` files: with the native kernels, in a process that has never seen the model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import config

import capsella
from capsella import _native
from capsella.errors import CapsellaError
from capsella.export import ExportImages, export_model, load_pt2, write_pt2
from capsella.export.graph import with_backend
from capsella.models import create_model
from capsella.routing import EMRouting

ROOT = Path(capsella.__file__).parents[1]
native = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason="without native kernels")


@pytest.fixture(scope="module")
def exported(model, splits, tmp_path_factory):
    config.update("jaxtyping_disable", True)  # as in conftest.py, which ends with each test
    path = tmp_path_factory.mktemp("pt2") / "digits"
    exported = export_model(model, ExportImages(splits.train, splits.test), path, format="pt2")
    config.update("jaxtyping_disable", False)
    return exported


@native
def test_it_calls_the_native_kernels_and_agrees(exported):
    assert exported.description["routing"] == "native"
    assert exported.description["operators"] == ["capsella.dynamic_capsule_conv.default"]
    assert exported.parity.holds
    assert exported.parity.images == 40
    assert load_pt2(exported.path / "model.pt2")[1] == exported.description


def test_a_fresh_process_runs_it(tmp_path):
    """It has imported no module that registers the operators of a routing."""
    model = create_model("mazzia2021_efficient_capsnet", image_size=13).eval()
    write_pt2(model, tmp_path / "x.pt2")
    images = torch.rand(5, 1, 13, 13)
    torch.save(images, tmp_path / "images.pt")
    code = (
        "import sys, torch; from capsella.export import load_pt2; run, about = load_pt2(sys.argv[1]); "
        "torch.save(run(torch.load(sys.argv[2])), sys.argv[3])"
    )
    words = [sys.executable, "-c", code, tmp_path / "x.pt2", tmp_path / "images.pt", tmp_path / "out.pt"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert answer.returncode == 0, answer.stderr
    torch.testing.assert_close(torch.load(tmp_path / "out.pt"), model(images).activations, atol=1e-6, rtol=0)


@native
def test_em_routing_calls_its_kernel(tmp_path):
    model = create_model("hinton2018_matrix_capsnet_small", image_size=17, routing=EMRouting(iterations=2)).eval()
    assert write_pt2(model, tmp_path / "x.pt2")["operators"] == ["capsella.em_capsule_conv.default"]
    run, _ = load_pt2(tmp_path / "x.pt2")
    for batch in (1, 3):
        images = torch.rand(batch, 1, 17, 17)
        with torch.no_grad():
            torch.testing.assert_close(run(images), model(images).activations, atol=1e-6, rtol=0)


def test_missing_kernels_are_named(exported, monkeypatch):
    monkeypatch.setattr(_native, "UNAVAILABLE", "kernels are missing")
    monkeypatch.setattr("torch.export.load", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no such operator")))
    with pytest.raises(CapsellaError, match="kernels are missing"):
        load_pt2(exported.path / "model.pt2")


def test_the_model_itself_is_unchanged(model):
    before = model.capsule_layers[0].routing
    copy = with_backend(model.train(), "eager")
    assert (copy.training, model.training) == (False, True)
    model.eval()
    assert model.capsule_layers[0].routing is before
    assert copy.capsule_layers[0].routing.backend == "eager"
    assert json.dumps(model.options["routing"]) == json.dumps(before.to_dict())
