"""`capsella compare` from a folder of tiny colour images to its report, in seconds."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from rich.console import Console

from capsella.cli import main
from capsella.data.splits import read_split_file
from capsella.experiments import runner
from capsella.experiments.compare import ComparisonOptions, compare, make_plan
from capsella.experiments.fit import read_test_predictions
from capsella.experiments.repeats import resume_run
from capsella.models import CapsuleClassifier
from capsella.training import TrainingDivergedError, load_run, load_splits, trained
from capsella.training.trained import open_network, open_runs_with_capsules
from tests.experiments.compare.conftest import write_images
from tests.experiments.compare.made import FLAGS, NETWORKS, call, fixed_speed
from tests.pictures import write_empty

CAPSULES, CNN, PRETRAINED = NETWORKS


def read(folder):
    return json.loads((folder / "comparison.json").read_text(encoding="utf-8"))


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class TestDone:
    def test_every_image_is_tested_once_and_no_run_learned_from_it(self, done, images):
        files = sorted(path.relative_to(images).as_posix() for path in images.glob("*/*.png"))
        rows = rows_of(done / "predictions.csv")
        assert sorted(row["file"] for row in rows) == files
        for fold in range(3):
            table = read_split_file(done / "splits" / f"fold{fold}.csv").rows
            assert {key for key, row in table.items() if row.split == "test"} == {
                row["file"] for row in rows if row["fold"] == str(fold)
            }
            for name in NETWORKS:
                run = done / "runs" / f"{name}-fold{fold}-seed0"
                assert set(read_test_predictions(run).files) == {k for k, row in table.items() if row.split == "test"}

    def test_the_numbers_agree(self, done):
        values, rows = read(done), rows_of(done / "predictions.csv")
        assert [network["family"] for network in values["networks"]] == ["capsules", "CNN", "pretrained"]
        accuracy = {}
        for network in values["networks"]:
            name = network["network"]
            accuracy[name] = np.mean([row["class"] == row[name] for row in rows])
            assert network["accuracy"]["estimate"] == pytest.approx(accuracy[name])
            assert network["accuracy"]["low"] <= accuracy[name] <= network["accuracy"]["high"]
            assert list(network["learning_curve"]) == ["12", "21"]  # 25 % would be a single image of a class
        decision = values["decision"]
        assert decision["reference"] == CNN
        assert set(decision["difference_from_reference"]) == {CAPSULES, PRETRAINED}
        assert decision["difference_from_reference"][PRETRAINED]["estimate"] == pytest.approx(
            accuracy[PRETRAINED] - accuracy[CNN]
        )

    def test_the_recommended_run_is_an_ordinary_one(self, done):
        values = read(done)
        assert values["decision"]["recommended"] == PRETRAINED  # the others hardly train
        run = load_run(done / values["recommended"])
        assert run.model.name == PRETRAINED
        assert run.model.calibration is not None

    def test_the_network_to_ship_is_trained_on_all_images_but_one(self, done):
        model, run = open_network(done, final=True)
        splits = load_splits(run)
        assert run.folder == done / read(done)["final"] == done / "runs" / f"{PRETRAINED}-all-seed0"
        assert model.calibration is not None
        assert len(splits.test) == 1
        assert not (run.folder / "result.json").exists()
        first = load_splits(load_run(done / "runs" / f"{PRETRAINED}-fold0-seed0"))
        assert set(splits.validation.files) == set(first.validation.files)
        assert set(splits.train.files) | set(splits.test.files) == set(first.train.files) | set(first.test.files)

    def test_commands_name_the_network_that_they_take(self, done, images, tmp_path, capsys, monkeypatch):
        opened = []
        monkeypatch.setattr(trained, "load_run", lambda folder: opened.append(str(folder)) or load_run(folder))
        best, final = (str(done / read(done)[name]) for name in ("recommended", "final"))
        main(["evaluate", str(done), "--out", str(tmp_path / "own.json")])
        note = capsys.readouterr().err.replace("\n", "")
        assert note.index(best) < note.index(final)
        main(["evaluate", str(done), "--data", str(images), "--out", str(tmp_path / "foreign.json")])
        main(["explore", str(done), "--data", str(images / "red" / "0.png"), "--out", str(tmp_path / "drawn")])
        assert opened == [best, final, final]

    def test_the_final_network_is_never_tested(self, done, tmp_path, capsys):
        final = shutil.copytree(done / read(done)["final"], tmp_path / "final")
        resume_run(final, {}, Console(quiet=True))
        assert not (final / "result.json").exists()
        for words in (["evaluate", str(final)], ["evaluate", str(final), "--robustness"]):
            with pytest.raises(SystemExit):
                main(words)
            assert "all images" in capsys.readouterr().err

    def test_pages_show_its_capsule_network(self, done):
        ((folder, run),) = open_runs_with_capsules([done]).items()
        assert read(done)["capsules"] == f"runs/{folder}"
        assert isinstance(run.model, CapsuleClassifier)

    def test_the_report_has_every_part(self, done):
        text = (done / "report.html").read_text(encoding="utf-8")
        parts = re.findall(r'<(?:h2|section|details)[^>]* id="([^"]+)"', text)
        assert {"decision", "networks", "forest", "confusion", "curve", "labels", "protocol", "facts"} <= set(parts)
        assert text.index('id="decision"') < text.index('id="forest"') < text.index('id="protocol"')
        assert not re.search(r"https?://", text)

    def test_called_again_it_reads(self, done, images, backbone, monkeypatch, capsys):
        before = read(done)
        monkeypatch.setattr("capsella.experiments.fit.train", None)
        monkeypatch.setattr("capsella.report.pages.write_figure", write_empty)
        call(images, *FLAGS, "--folds", 3, "--backbone", backbone, "--out", done)
        assert read(done)["decision"] == before["decision"]
        out = " ".join(capsys.readouterr().out.split())
        assert "run 1 of" not in out
        assert f"Run: {done / before['recommended']} " in out
        assert f"trained on test images, too): {done / before['final']} " in out

    def test_other_options_are_refused(self, done, images, backbone, wrong):
        assert "minutes" in wrong(images, *FLAGS, "--folds", 3, "--backbone", backbone, "--out", done, "--minutes", 1)


def test_one_test_set_and_more_seeds(images, backbone, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.report.pages.write_figure", write_empty)
    words = (images, *FLAGS, "--folds", 1, "--seeds", 1, "--no-curve", "--backbone", backbone, "--out", tmp_path / "c")
    call(*words)
    once, report = read(tmp_path / "c"), (tmp_path / "c" / "report.html").read_text(encoding="utf-8")
    assert "one training of each network" in report
    assert "--no-curve was set" in report
    assert (once["folds"], once["images"]) == (1, len(rows_of(tmp_path / "c" / "predictions.csv")))
    call(*words[:-2], "--seeds", 2, "--latency-limit", 1e-6, *words[-2:])
    added = read(tmp_path / "c")
    assert added["seeds"] == [0, 1]
    assert (added["recommended"], added["decision"]["reason"]) in ((None, "none fast"), (None, "none useful"))
    assert len(list((tmp_path / "c" / "runs").iterdir())) == 5  # a logistic regression has one seed


def test_a_network_that_diverges_is_left_out(images, backbone, tmp_path, monkeypatch):
    real = runner.train_or_resume

    def diverge(recipe, *arguments):
        if recipe.model.name == CAPSULES:
            raise TrainingDivergedError("the loss is nan")
        return real(recipe, *arguments)

    monkeypatch.setattr(runner, "train_or_resume", diverge)
    options = ComparisonOptions(
        images=str(images), networks=NETWORKS, size=17, minutes=0.01, folds=2, curve=False, backbone=str(backbone),
        out=tmp_path / "c",
    )  # fmt: skip
    with fixed_speed():
        found = compare(make_plan(options), Console(quiet=True))
    assert found.left_out == ["Matrix capsules"]
    assert [network.name for network in found.decision.networks] == [CNN, PRETRAINED]


@pytest.mark.parametrize(
    "counts",
    [
        {**{f"k{k:02}": 4 for k in range(50)}},
        {"a": 20, "b": 20, "rare": 4},
    ],
    ids=["fifty classes", "a rare class"],
)
def test_unusual_classes(counts, backbone, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.report.pages.write_figure", write_empty)
    folder = write_images(tmp_path / "own", counts, size=17)
    words = ("--networks", CNN, PRETRAINED, "--size", 17, "--minutes", 0.01, "--no-curve", "--backbone", backbone)
    call(folder, *words, "--out", tmp_path / "c")
    values = read(tmp_path / "c")
    assert values["images"] == sum(counts.values())
    assert values["classes"] == counts
    assert values["decision"]["measure"] == ("accuracy" if len(set(counts.values())) == 1 else "balanced accuracy")
