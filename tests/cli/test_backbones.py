"""Training on a pretrained backbone: a folder that is gone later, and an interrupted fine-tuning."""

import json
import shutil

import pytest
import torch

from capsella.training import load_run
from capsella.training.loop import Trainer

transformers = pytest.importorskip("transformers")
SHORT = ("--size", 17, "--epochs", 2, "--batch-size", 8, "--accelerator", "cpu", "--no-flip")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "backbone"
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    config = transformers.ResNetConfig(**sizes)
    transformers.AutoModelForImageClassification.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.usefixtures("as_users_call")
def test_train_and_predict_without_the_folder_of_the_backbone(cli, images, backbone, tmp_path):
    copy, out = shutil.copytree(backbone, tmp_path / "copy"), tmp_path / "run"
    words = ("train", "images-backbone-capsules", images, "--model-kwargs", f"backbone={copy}", *SHORT, "--out", out)
    answer = cli(*words)
    assert answer.code == 0, answer.err
    shutil.rmtree(copy)
    for words in (("predict", out, images), ("evaluate", out), ("export", out, "--format", "pt2")):
        answer = cli(*words)
        assert answer.code == 0, answer.err
    assert json.loads((out / "model.json").read_text())["options"]["backbone"]["config"]["model_type"] == "resnet"


@pytest.mark.slow
def test_a_resumed_fine_tuning_ends_with_the_weights_of_an_unbroken_one(cli, images, backbone, tmp_path, monkeypatch):
    options = ("--model-kwargs", f"backbone={backbone}", "fine_tune=True")
    words = ("train", "images-backbone-capsules", images, *options, *SHORT, "--deterministic")
    assert cli(*words, "--out", tmp_path / "whole").code == 0
    ended = Trainer._finish_epoch

    def stop(trainer):
        row = ended(trainer)
        if trainer.progress.epoch == 1:
            raise KeyboardInterrupt
        return row

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_finish_epoch", stop)
        assert cli(*words, "--out", tmp_path / "broken").code == 130
    assert cli("train", "--resume", tmp_path / "broken").code == 0
    whole, broken = (load_run(tmp_path / name).model.state_dict() for name in ("whole", "broken"))
    assert all(torch.equal(broken[name], value) for name, value in whole.items())
