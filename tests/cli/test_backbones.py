"""Training on a pretrained backbone whose folder is gone later."""

import json
import shutil

import pytest

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
