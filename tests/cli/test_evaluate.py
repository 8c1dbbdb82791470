"""`capsella evaluate`: the run's own images, other splits, robustness, attacks, selective classification, OOD."""

import json
import shutil

import pytest
from PIL import Image

from capsella.training.trained import open_runs, shared_test_images


def read(path):
    return json.loads(path.read_text())


def test_a_table_and_the_numbers_of_the_training(cli, copied):
    _, run = copied
    before = read(run / "test.json")
    (run / "test.json").unlink()
    answer = cli("evaluate", run)
    assert answer.code == 0, answer.err
    assert read(run / "test.json") == before
    assert f"{before['error_percent']:.2f}" in answer.out
    assert sum(map(sum, before["confusion"]["counts"])) == before["images"] == 6


def test_other_splits_and_fewer_images_go_to_other_files(cli, copied):
    _, run = copied
    assert cli("evaluate", run, "--split", "train", "--batch-size", 5).code == 0
    assert read(run / "train.json")["images"] == 24
    assert cli("evaluate", run, "--per-class", 1).code == 0
    assert read(run / "test-per-class1.json")["images"] == 3


def test_selective_classification(cli, copied):
    _, run = copied
    answer = cli("evaluate", run, "--selective")
    assert answer.code == 0, answer.err
    assert (run / "figures" / "test-selective-risk_coverage.png").stat().st_size > 1000
    assert read(run / "test-selective.json")["images"] == 6


def test_out_of_distribution_images(cli, copied):
    images, run = copied
    flags = ("--ood-false-positive-rate", 0.85)
    answer = cli("evaluate", run, "--ood", "noise", "half", images / "rings", *flags)
    assert answer.code == 0, answer.err
    assert read(run / "test-ood.json")["ood"]
    wrong = cli("evaluate", run, "--ood", "nowhere")
    assert (wrong.code, "nowhere" in wrong.err) == (1, True)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--selective", "--split", "train"), "selective"),
        (("--group", "(a)"), "group"),
        (("--range", 0, 9), "range"),
        (("--robustness", "--data", "digits"), "data"),
        (("--attack", "--selective"), "selective"),
        (("--attack", "--perturbations", "noise"), "perturbations"),
        (("--batch-size", 0), "batch_size"),
    ],
)
def test_flags_that_do_not_go_together(cli, trained, flags, named):
    answer = cli("evaluate", trained, *flags)
    assert answer.code in (1, 2)
    assert named in answer.err


def test_robustness_of_two_networks(cli, trained, tmp_path):
    copies = [shutil.copytree(trained, tmp_path / name / "run") for name in ("a", "b")]
    flags = ("--robustness", "--perturbations", "rotation", "noise", "--per-class", 1)
    answer = cli("evaluate", *copies, *flags, "--out", tmp_path / "r")
    assert answer.code == 0, answer.err
    points = read(tmp_path / "r" / "robustness.json")["points"]
    half = len(points) // 2
    assert {point["network"] for point in points[:half]} == {"a/run"}
    assert [point["correct"] for point in points[:half]] == [point["correct"] for point in points[half:]]
    with Image.open(tmp_path / "r" / "robustness.png") as picture:
        assert min(picture.size) > 300


def test_attacks_on_two_networks(cli, trained, trained_run, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.evaluation.attacks.FULL_REACH", {"steps": 2, "restarts": 1})
    cnn, quick = trained_run("cnn"), ("--epsilons", 0.1, 0.5, "--steps", 2, "--restarts", 1, "--per-class", 1)
    words = ("evaluate", trained, cnn, "--attack", *quick, "--ood-false-positive-rate", 0.85, "--out", tmp_path)
    answer = cli(*words)
    assert answer.code == 0, answer.err
    values = read(tmp_path / "attacks.json")
    assert (values["images"], values["options"]["epsilons"]) == (3, [0.1, 0.5])
    attacks = {name: {(row["attack"], row["source"]) for row in network["attacks"]}
               for name, network in values["networks"].items()}  # fmt: skip
    white = {("FGSM", None), ("BIM", None), ("PGD", None), ("adaptive", None)}
    assert attacks["run-cnn"] == {*white, ("transfer", "run-capsnet")}
    assert attacks["run-capsnet"] == {*white, ("vote", None), ("transfer", "run-cnn")}
    with Image.open(tmp_path / "attacks.png") as picture:
        assert min(picture.size) > 300


@pytest.mark.parametrize("flag", ["--robustness", "--attack"])
def test_networks_with_other_test_images_are_not_compared(cli, copied, trained, flag):
    _, run = copied
    shared_test_images(open_runs([trained, run]), "a test")  # the same images in another folder
    (run / "split.csv").unlink()
    config = read(run / "config.json")
    config["recipe"]["data"]["split_seed"] = 7
    del config["images"]
    (run / "config.json").write_text(json.dumps(config))
    answer = cli("evaluate", trained, run, flag)
    assert answer.code == 1
    assert "other images than run-capsnet" in answer.err


@pytest.mark.usefixtures("copied")
def test_a_comparison_stands_for_its_recommended_network(cli, tmp_path):
    (tmp_path / "comparison.json").write_text(json.dumps({"recommended": "run"}))
    assert cli("evaluate", tmp_path, "--out", tmp_path / "t.json").code == 0
    assert read(tmp_path / "t.json")["images"] == 6
    (tmp_path / "comparison.json").write_text(json.dumps({"recommended": None}))
    assert cli("evaluate", tmp_path).code == 1


def test_pairs(cli, tmp_path):
    """17×17: the least that CapsNet's kernels allow is 9×9 and shifts of 4."""
    run, small = tmp_path / "pairs", ("--model-kwargs", "primary_types=4", "decoder_width=16", "--size", 9)
    pairs = ("--of", "digits", "--epoch-images", 16, "--validation-pairs", 10, "--test-pairs", 20)
    words = ("train", "sabour2017-multimnist", *small, *pairs, "--epochs", 1, "--batch-size", 8, "--out", run)
    assert cli(*words).code == 0
    written = read(run / "result.json")
    assert written["test"]["images"] == 20
    assert cli("evaluate", run).code == 0
    assert read(run / "test.json")["errors"] == written["test"]["errors"]
    assert "except for pairs" in cli("evaluate", run, "--selective").err
    assert cli("evaluate", run, "--test-pairs", 7).code == 0
    assert read(run / "test-pairs7.json")["images"] == 7
    Image.new("L", (17, 17), 90).save(tmp_path / "image.png")
    assert cli("explore", run, "--data", tmp_path / "image.png", "--out", tmp_path / "pictures").code == 0
    row = cli("predict", run, tmp_path / "image.png").out.splitlines()[1]
    assert " + " in row.split(",")[1]


def test_routing(cli, copied):
    _, run = copied
    answer = cli("evaluate", run, "--routing")
    assert answer.code == 0, answer.err
    routing = read(run / "test-routing.json")["routing"]
    assert routing["images"] == 6
    assert [layer["name"] for layer in routing["layers"]] == ["layer 1 (dynamic)"]
    assert set(routing["parse_trees"]) == {"columns", "rows", "rings"}
