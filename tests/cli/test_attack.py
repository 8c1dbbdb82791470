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
        patch.setattr("capsella.evaluation.attacks.curves.FULL_REACH_STEPS", 2)
        patch.setattr("capsella.evaluation.attacks.curves.FULL_REACH_RESTARTS", 1)
        yield


@pytest.fixture(scope="module")
def cnn(images, trained):
    folder = images.parent / "cnn"
    words = ["--model", "hinton2018_cnn", *SHORT, "--out", str(folder)]
    main(["train", "images-cnn", "--data.path", str(images), *words])
    return folder


def test_two_runs(cli, trained, cnn, tmp_path):
    answer = cli("attack", trained, cnn, *QUICK, "--refuse", 0.85, "--out", tmp_path)
    assert answer.code == 0, answer.err
    values = json.loads((tmp_path / "attacks.json").read_text())
    assert (values["data"], values["images"], values["options"]["epsilons"]) == ("my images", 6, [0.1, 0.5])
    attacks = {
        name: [(row["attack"], row["source"]) for row in network["attacks"]]
        for name, network in values["networks"].items()
    }
    white = [("FGSM", None), ("BIM", None), ("PGD", None), ("adaptive", None)]
    assert set(attacks["cnn"]) == {*white, ("transfer", "run")}
    assert set(attacks["run"]) == {*white, ("vote", None), ("transfer", "cnn")}
    for network in values["networks"].values():
        assert f"{network['clean_accuracy_percent']:.1f}" in answer.out
        assert all(len(row["accuracy_percent"]) == 2 for row in network["attacks"])
    for text in ("transfer from run", "vote", "ε = 0.5", "run: ", "PGD at ε = 1 leaves", str(tmp_path / "attacks.png")):
        assert text in answer.out
    with Image.open(tmp_path / "attacks.png") as picture:
        assert min(picture.size) > 300
    again = cli("attack", trained, cnn, *QUICK, "--refuse", 0.85, "--out", tmp_path, "--json")
    assert json.loads(again.out) == values


def test_runs_of_the_same_test_images_by_other_flags(cli, trained, images, tmp_path):
    """A split file that holds the very split that the first run drew."""
    assert cli("data", "split", "folder", "--path", images, "--out", tmp_path / "split.csv").code == 0
    words = ["--path", images, "--split-file", tmp_path / "split.csv", "--model", "hinton2018_cnn", *SHORT]
    assert cli("train", "images-cnn", *words, "--out", tmp_path / "other").code == 0
    answer = cli("attack", trained, tmp_path / "other", *QUICK, "--per-class", 1, "--out", tmp_path)
    assert answer.code == 0, answer.err
    assert "transfer from other" in " ".join(answer.out.split())


def test_one_run_of_fewer_images(cli, trained):
    answer = cli("attack", trained, *QUICK, "--per-class", 1)
    assert answer.code == 0, answer.err
    assert json.loads((trained / "attacks.json").read_text())["images"] == 3
    assert "transfer" not in answer.out
    assert "adaptive" not in answer.out
    assert "note: run: what is not known is not counted: that takes 45 validation images, and it has 3" in answer.err


def test_errors(cli, trained, cnn, images, tmp_path):
    other = tmp_path / "other"
    words = ["--data.path", images, "--model", "hinton2018_cnn", *SHORT[2:], "--size", 18, "--out", other]
    assert cli("train", "images-cnn", *words).code == 0
    apart = tmp_path / "apart"
    words = ["--data.path", images, "--model", "hinton2018_cnn", *SHORT, "--split-seed", 1, "--out", apart]
    assert cli("train", "images-cnn", *words).code == 0
    for words, message in (
        ([], "runs: must name the folder of at least one run"),
        ([trained, trained], "runs: must each be named once"),
        ([trained, "--per-class", 0], "per_class: must be at least 1 or None, got 0"),
        ([trained, "--epsilons", 2], "epsilons: must be at least one, rising within (0, 1], got (2.0,)"),
        ([trained, other], "other: its test images must be those of run, but they are 17×17×1 there and 18×18×1 here"),
        ([trained, apart], "apart: its test images must be those of run, but of 6 there and 6 here "),
    ):
        answer = cli("attack", *words)
        assert answer.code in (1, 2)  # 2 where a flag alone is wrong
        assert message in " ".join(answer.err.replace("│", " ").split())
