"""A stem on the command line: a run of one's own, a folder, and names that lead nowhere."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from capsella.cli import main
from capsella.training import load_run
from capsella.training.loop import Trainer

transformers = pytest.importorskip("transformers")

SHORT = ("--size", 17, "--epochs", 2, "--batch-size", 8, "--accelerator", "cpu", "--no-flip")
HEADS = ("images-backbone-capsules", "images-backbone-linear")


@pytest.fixture(scope="module")
def own(images):
    """A run whose convolutions are a stem."""
    folder = images.parent / "earlier"
    words = ("train", "he2016-cells", "--data", f"{images}/", *SHORT, "--out", folder)
    main([str(word) for word in words])
    return folder


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "backbone"
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1], layer_type="basic"
    )
    transformers.AutoModelForImageClassification.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.usefixtures("as_users_call")
def test_train_predict_and_export_without_the_folder(cli, images, backbone, tmp_path, head):
    pytest.importorskip("onnxruntime")
    copy = shutil.copytree(backbone, tmp_path / "copy")
    out = tmp_path / "run"
    answer = cli("train", head, "--data.path", images, "--backbone", copy, *SHORT, "--out", out)
    assert answer.code == 0, answer.err
    shutil.rmtree(copy)
    for words in (("predict", out, images), ("evaluate", out), ("export", out)):
        answer = cli(*words)
        assert answer.code == 0, answer.err
    assert json.loads((out / "model.json").read_text())["options"]["backbone"]["config"]["model_type"] == "resnet"


def test_fine_tuning_an_interrupted_training(cli, images, backbone, tmp_path, monkeypatch):
    """The resumed training ends with the weights of an unbroken one."""
    words = ("train", HEADS[0], "--data.path", images, "--backbone", backbone, "--fine-tune", *SHORT, "--deterministic")
    assert cli(*words, "--out", tmp_path / "whole").code == 0
    ended = Trainer._finish_epoch

    def stop(trainer):
        row = ended(trainer)
        if trainer.progress.epoch == 1:
            raise KeyboardInterrupt
        return row

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_finish_epoch", stop)
        assert cli(*words, "--out", tmp_path / "broken").code != 0
    assert cli("train", "--resume", tmp_path / "broken").code == 0
    whole, broken = (load_run(tmp_path / name).model.state_dict() for name in ("whole", "broken"))
    assert all(torch.equal(broken[name], value) for name, value in whole.items())


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached(images, tmp_path):
    """In a process of its own: the library reads whether it is offline when it is imported."""
    words = ["train", HEADS[1], "--data.path", str(images), "--backbone", "somebody/resnet-9", "--size", "17"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    call = [sys.executable, "-m", "capsella", *words, "--out", str(tmp_path / "run")]
    done = subprocess.run(call, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "backbone somebody/resnet-9: there is no such folder or registered network here" in said
    assert "hf download somebody/resnet-9 --local-dir FOLDER" in said
    assert "Traceback" not in said


def test_compare_on_a_stem(cli, images, backbone, tmp_path):
    words = ("compare", images, "--backbone", backbone, "--models", "stem_linear", "--size", 17, "--channels", 1)
    words = (*words, "--epochs", 1, "--seeds", 0, "--rates", 1, "--sizes", 1, "--accelerator", "cpu")
    answer = cli(*words, "--out", tmp_path / "study")
    assert answer.code == 0, answer.err
    found = json.loads((tmp_path / "study" / "compare.json").read_text())
    assert (found["verdict"]["capsules"], found["verdict"]["cnn"]) == ("stem_capsules", "stem_linear")
    again = cli(*words[:2], "--backbone", "he2016_resnet10", *words[4:], "--out", tmp_path / "study")
    assert again.code != 0
    assert "holds a comparison with backbone = " in again.err
