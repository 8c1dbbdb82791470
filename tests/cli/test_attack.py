"""`capsella attack` on a capsule network and a CNN."""

import json

import pytest
from PIL import Image

from capsella.cli import main
from tests.trained import SHORT

QUICK = ["--epsilons", "0.1", "0.5", "--steps", "2", "--restarts", "1"]


@pytest.fixture(scope="module", autouse=True)
def _few_steps():
    """Of the attack with every image within reach, which `QUICK` does not shorten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capsella.evaluation.attack_curves.FULL_REACH_STEPS", 2)
        patch.setattr("capsella.evaluation.attack_curves.FULL_REACH_RESTARTS", 1)
        yield


@pytest.fixture(scope="module")
def cnn(images, trained):
    folder = images.parent / "cnn"
    words = ["--model", "hinton2018_cnn", *SHORT, "--out", str(folder)]
    main(["train", "images-cnn", "--data.path", str(images), *words])
    return folder


def test_two_runs(cli, trained, cnn, tmp_path):
    answer = cli("attack", trained, cnn, *QUICK, "--ood-false-positive-rate", 0.85, "--out", tmp_path)
    assert answer.code == 0, answer.err
    values = json.loads((tmp_path / "attacks.json").read_text())
    assert (values["data"], values["images"], values["options"]["epsilons"]) == ("my images", 6, [0.1, 0.5])
    attacks = {
        name: [(row["attack"], row["source"]) for row in network["attacks"]]
        for name, network in values["networks"].items()
    }
    white = [("FGSM", None), ("BIM", None), ("PGD", None), ("adaptive", None)]
    assert set(attacks["cnn"]) == {*white, ("transfer", "run-capsnet")}
    assert set(attacks["run-capsnet"]) == {*white, ("vote", None), ("transfer", "cnn")}
    for network in values["networks"].values():
        assert f"{network['clean_accuracy_percent']:.1f}" in answer.out
        assert all(len(row["accuracy_percent"]) == 2 for row in network["attacks"])
    texts = ("transfer from run-capsnet", "vote", "ε = 0.5", "run-capsnet: ", "PGD at ε = 1 leaves")
    for text in (*texts, str(tmp_path / "attacks.png")):
        assert text in answer.out
    with Image.open(tmp_path / "attacks.png") as picture:
        assert min(picture.size) > 300
    again = cli("attack", trained, cnn, *QUICK, "--ood-false-positive-rate", 0.85, "--out", tmp_path, "--json")
    assert json.loads(again.out) == values
