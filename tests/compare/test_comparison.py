"""`capsella compare` from a folder of tiny colour images to its report, in seconds."""

import csv
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from capsella.compare import ComparisonOptions, make_plan, results
from capsella.data.splits import read_split_file
from capsella.experiments import runner as grid
from capsella.training import TrainingDivergedError
from tests.compare.made import FLAGS, NETWORKS, WHOLE, call


class TestDone:
    def test_the_report_has_every_part(self, done):
        text = (done / "report.html").read_text(encoding="utf-8")
        assert re.findall(r'<(?:h2|section)[^>]* id="([^"]+)"', text) == [
            *("verdict", "networks", "protocol", "accuracy", "learning", "sizes", "robustness"),
            *("confusion-capsules", "confusion-cnn", "reconstructions", "dimension_tweaks"),
        ]
        assert text.count("data:image/svg+xml;base64,") == 6  # neither network has a decoder
        assert not re.search(r"https?://", text)

    def test_the_numbers_agree(self, done):
        values = json.loads((done / "compare.json").read_text(encoding="utf-8"))
        with open(done / "test_predictions.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == values["images"]["test"]
        table = read_split_file(done / "split.csv")
        assert {row["file"] for row in rows} == {key for key, row in table.rows.items() if row.split == "test"}
        for network in values["networks"]:
            hits = [[row["class"] == row[f"{network['network']} seed {seed}"] for row in rows] for seed in (0, 1)]
            assert network["accuracy"]["estimate"] == pytest.approx(np.mean(hits))
            assert [network["seeds"][seed]["test"]["errors"] for seed in "01"] == [row.count(False) for row in hits]
            assert set(network["shares"]) == {"0.5"}
            assert set(network["accuracy_on_changed_images_percent"]) == {"rotation", "translation", "colour", "noise"}
        one, other = (network["accuracy"]["estimate"] for network in values["networks"])
        assert values["verdict"]["difference"]["estimate"] == pytest.approx(one - other)
        assert (values["verdict"]["capsules"], values["verdict"]["cnn"]) == NETWORKS
        assert values["options"]["seeds"] == [0, 1]
        useful = values["verdict"]["better_than_chance"]
        assert values["verdict"]["recommended"] in (None, *useful)
        assert set(values["verdict"]["kept_under_changes"]) == (
            {"rotation", "translation", "colour", "noise"} if len(useful) == 2 else set()
        )
        assert values["verdict"]["not_trained_to_the_end"] == []  # of one epoch nothing is said

    def test_only_chosen_runs_are_tested_and_none_by_training(self, done):
        runs = sorted(path.name for path in (done / "runs").iterdir())
        assert len(runs) == 8  # two networks, two seeds, all and half of the images
        assert not list((done / "runs").glob("*/test.json"))

    def test_no_run_is_tested_on_what_it_learned_from(self, done, images, tmp_path, wrong):
        """Without its plan a comparison may be asked for with another split, and its runs are there."""
        shutil.copytree(done, tmp_path / "kept")
        (done / "plan.json").unlink()
        message = wrong(images, *FLAGS, "--test", "0.4", "--sizes", "1", "--out", done)
        shutil.rmtree(done)
        shutil.copytree(tmp_path / "kept", done)
        assert "colours has changed" in message

    def test_called_again_it_reads(self, done, images, monkeypatch, capsys):
        before = json.loads((done / "compare.json").read_text(encoding="utf-8"))
        monkeypatch.setattr("capsella.experiments.fit.train", None)
        monkeypatch.setattr("capsella.experiments.fit.resume", None)
        call(images, *FLAGS, "--out", done)
        after = json.loads((done / "compare.json").read_text(encoding="utf-8"))
        for network in (*before["networks"], *after["networks"]):
            del network["latency_ms"]
        assert before["networks"] == after["networks"]
        assert "run 1 of 8" not in capsys.readouterr().out

    def test_other_options_are_refused(self, done, images, wrong):
        assert "epochs" in wrong(images, *FLAGS, "--out", done, "--epochs", "2")
        assert "seeds" in wrong(images, *FLAGS, "--out", done, "--seeds", 0)


def test_seeds_are_added_and_the_latency_is_judged_anew(images, done, tmp_path):
    shutil.copytree(done, tmp_path / "kept")
    once = json.loads((done / "compare.json").read_text(encoding="utf-8"))
    before = {path: path.stat().st_mtime_ns for path in done.glob("runs/*/summary.json")}
    call(images, *FLAGS, "--seeds", 3, "--latency-limit", 1e-6, "--out", done)
    added = json.loads((done / "compare.json").read_text(encoding="utf-8"))
    after = {path: path.stat().st_mtime_ns for path in done.glob("runs/*/summary.json")}
    shutil.rmtree(done)
    shutil.copytree(tmp_path / "kept", done)
    assert {path: after[path] for path in before} == before
    new = [path.parent.name for path in after if path not in before]
    assert len(new) == 4  # two networks, on all and half of the images
    assert all(name.endswith("seed2") for name in new)
    for old, now in zip(once["networks"], added["networks"], strict=True):
        assert set(now["seeds"]) == {"0", "1", "2"}
        assert {seed: now["seeds"][seed] for seed in "01"} == old["seeds"]
    assert (once["tested_seeds"], added["tested_seeds"]) == ([[0, 1]], [[0, 1], [0, 1, 2]])
    assert added["verdict"]["recommended"] is None


def test_an_interrupted_comparison_goes_on(images, done, tmp_path, monkeypatch):
    real, calls = grid.train_or_resume, []

    def interrupted(recipe, folder, *arguments):
        calls.append(folder.name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(recipe, folder, *arguments)

    monkeypatch.setattr(grid, "train_or_resume", interrupted)
    flags = (*WHOLE, "--sizes", "1")  # the halves have no part in the verdict
    with pytest.raises(SystemExit):
        call(images, *flags, "--out", tmp_path / "c")
    assert not (tmp_path / "c" / "compare.json").exists()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").glob("runs/*/summary.json")}
    assert len(stamps) == 2
    monkeypatch.undo()
    call(images, *flags, "--out", tmp_path / "c")
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    ours, unbroken = (json.loads((folder / "compare.json").read_text()) for folder in (tmp_path / "c", done))
    assert ours["verdict"]["difference"] == unbroken["verdict"]["difference"]


def test_a_rate_that_diverges_is_not_chosen(images, tmp_path, monkeypatch):
    def fake(recipe, folder, *_):
        rate = recipe.optimizer.learning_rate
        if rate > 2e-3 or (recipe.model.name == NETWORKS[1] and recipe.seed == 1):
            raise TrainingDivergedError("the loss is nan")
        folder.mkdir(parents=True, exist_ok=True)
        best = {"validation_error": 50 - 1000 * rate, "validation_loss": 1.0, "epoch": 1}
        (folder / "summary.json").write_text(json.dumps({"best": best, "kept_by": "validation_error", "seconds": 1.0}))
        return SimpleNamespace(splits=None)

    monkeypatch.setattr(grid, "train_or_resume", fake)
    options = ComparisonOptions(images, models=(*NETWORKS, "sabour2017_cnn"), seeds=2, sizes=(1,), out=tmp_path / "c")
    plan = make_plan(options)
    networks, champions = results.train_all(plan, Console(quiet=True))
    assert [one.search.best for one in networks] == [1e-3, 1e-3, 9e-5]
    assert networks[0].search.tried[3e-3].error == float("inf")
    assert champions["CNN"].candidate.network == "sabour2017_cnn"  # the other diverged with a seed
    again, _ = results.train_all(plan, Console(quiet=True))
    assert again == networks
