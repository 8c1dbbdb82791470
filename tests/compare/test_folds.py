"""`capsella compare --folds`: a comparison a fold, and a verdict over all of them."""

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from capsella.compare import ComparisonOptions, compare_folds, first_plan, study
from capsella.compare.folds import Fold, judge_folds
from capsella.compare.study import _check_same_images
from capsella.compare.words import phrase
from capsella.errors import CapsellaError
from tests.compare.made import NETWORKS, call
from tests.pictures import write_empty

CAPSULES, CNN = NETWORKS
FLAGS = ("--models", *NETWORKS, "--epochs", "1", "--rates", "1", "--accelerator", "cpu", "--folds", "3")


@pytest.fixture(scope="module", autouse=True)
def _quick_reports():
    """Without pictures, which `test_comparison` has, and with few calls to time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capsella.report.pages.write_figure", write_empty)
        patch.setattr("capsella.bench.stopwatch.MIN_CALLS", 10)
        yield


@pytest.fixture(scope="module")
def done(images):
    folder = images.parent / "folds"
    call(images, *FLAGS, "--out", folder)
    return folder


@pytest.fixture(scope="module")
def plan(images):
    return first_plan(ComparisonOptions(images, models=NETWORKS, folds=3, out=images.parent / "none"))


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


class TestDone:
    def test_every_image_is_tested_once(self, done, images):
        tested = []
        for number in range(3):
            with open(done / f"fold{number}" / "test_predictions.csv", newline="") as file:
                tested += [row["file"] for row in csv.DictReader(file)]
        assert sorted(tested) == sorted(path.relative_to(images).as_posix() for path in images.glob("*/*.png"))

    def test_the_numbers_are_those_of_the_folds(self, done):
        values, each = read(done / "compare.json"), [read(done / f"fold{k}" / "compare.json") for k in range(3)]
        for name in NETWORKS:
            of_folds = [next(n for n in one["networks"] if n["network"] == name) for one in each]
            mine = next(one for one in values["networks"] if one["network"] == name)
            assert mine["accuracy_by_fold"] == [one["accuracy"]["estimate"] for one in of_folds]
            assert mine["accuracy"]["estimate"] == pytest.approx(np.mean(mine["accuracy_by_fold"]))
            assert mine["validation_error_percent"] == pytest.approx(
                np.mean([one["validation_error_percent"] for one in of_folds])
            )
            balanced = [one["balanced_accuracy_percent"] for one in of_folds]
            assert 100 * mine["balanced_accuracy"]["estimate"] == pytest.approx(np.mean(balanced))
        verdict = values["verdict"]
        assert verdict["difference"]["estimate"] == pytest.approx(np.mean(verdict["difference_by_fold"]))
        assert [one["headline"] for one in values["folds"]] == [one["verdict"]["headline"] for one in each]
        assert [one["options"]["seeds"] for one in each] == [[0]] * 3
        assert [one["options"]["fold"] for one in each] == [0, 1, 2]

    def test_called_again_it_trains_what_is_missing(self, done, images, capsys):
        before = read(done / "compare.json")
        (done / "compare.json").unlink()
        shutil.rmtree(done / "fold1")
        stamps = {path: path.stat().st_mtime_ns for path in done.glob("fold*/runs/*/summary.json")}
        assert len(stamps) == 4
        call(images, *FLAGS, "--out", done)
        assert capsys.readouterr().out.count("run 1 of 2") == 1
        assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
        after = read(done / "compare.json")
        assert after["verdict"]["difference_by_fold"] == before["verdict"]["difference_by_fold"]

    def test_folds_of_other_images_are_not_put_together(self):
        plans = [
            SimpleNamespace(folder=Path("fold1"), table=SimpleNamespace(rows=dict.fromkeys(names)))
            for names in (("a.png", "b.png"), ("a.png",), ("a.png", "b.png", "c.png"))
        ]
        _check_same_images(plans[0], plans[0])
        for first, file in ((plans[1], "b.png"), (plans[2], "c.png")):
            with pytest.raises(CapsellaError, match=file):
                _check_same_images(plans[0], first)

    def test_folders_of_other_comparisons(self, done, images):
        for words in (
            (*FLAGS[:-2], "--out", done),
            (*FLAGS[:-2], "--seeds", 1, "--out", done / "fold1"),
            (*FLAGS, "--out", done / "fold1"),
            (*FLAGS[:-1], 2, "--out", done),
        ):
            with pytest.raises(SystemExit):
                call(images, *words)


def test_the_time_is_shared_out_and_every_fold_has_the_same_epochs(images, tmp_path, monkeypatch):
    options = ComparisonOptions(images, models=NETWORKS, folds=3, epochs=1000, minutes=1, seeds=1, out=tmp_path)
    first, seen = first_plan(options), []
    assert first.epochs < 1000
    assert first.total_seconds() <= 60 / 3

    found = Fold(np.array([0, 1]), None, 4, {}, {}, {}, (), "")
    monkeypatch.setattr(Fold, "of", lambda findings: found)
    monkeypatch.setattr(study, "compare", lambda plan, console: [seen.append(plan)])
    assert compare_folds(options, first, Console(quiet=True)) == [found] * 3
    assert [plan.folder.name for plan in seen] == ["fold0", "fold1", "fold2"]
    assert {plan.epochs for plan in seen} == {first.epochs}
    assert all(plan.costs is first.costs for plan in seen)
    assert len({file for plan in seen for file in plan.splits.test.files}) == 36


class TestVerdict:
    def fold(self, capsules, cnn, unfinished=(), validation=(5.0, 6.0)):
        """40 images of two classes, the first 20 and the last: that many of each class right."""
        hits = {}
        for name, count in ((CAPSULES, capsules), (CNN, cnn)):
            right = np.arange(20) < count
            hits[name] = np.concatenate([right, right])[None]
        labels = np.repeat([0, 1], 20)
        return Fold(
            labels,
            None,
            80,
            hits,
            dict(zip(NETWORKS, validation, strict=True)),
            dict.fromkeys(NETWORKS, (1.0, 2.0)),
            unfinished,
            "",
        )

    def test_a_clear_winner(self, plan):
        verdict = judge_folds(plan, [self.fold(19, 13), self.fold(18, 13), self.fold(19, 12)])
        assert verdict.verdict.winner == "capsules"
        assert verdict.verdict.difference.estimate == pytest.approx((6 + 5 + 7) / 3 / 20)
        half = 4.302653 * 0.05 * (1 / 3 + 1 / 2) ** 0.5  # differences of 0.30, 0.25 and 0.35
        assert verdict.verdict.difference.low == pytest.approx(0.3 - half)
        assert CAPSULES in verdict.verdict.useful

    def test_neither_is_better_than_the_largest_class(self, plan):
        verdict = judge_folds(plan, [self.fold(19, 11), self.fold(6, 9), self.fold(12, 10)])
        assert verdict.verdict.useful == ()

    def test_the_best_of_a_kind_is_chosen_by_validation_and_who_diverged_is_left_out(self, plan, images):
        names = (*NETWORKS, "he2016_resnet10")
        larger = first_plan(ComparisonOptions(images, models=names, folds=3, out=images.parent / "none"))
        three = [self.fold(19, 12), self.fold(19, 12), self.fold(19, 12)]
        for one in three:
            one.correct["he2016_resnet10"] = np.ones((1, 40), bool)  # the best on test images
            one.validation["he2016_resnet10"] = 7.0
            one.latency["he2016_resnet10"] = (1.0, 2.0)
        assert judge_folds(larger, three).best[1].name == CNN
        three[1].validation["he2016_resnet10"] = 1.0
        assert judge_folds(larger, three).best[1].name == "he2016_resnet10"
        del three[2].correct["he2016_resnet10"]
        verdict = judge_folds(larger, three)
        assert verdict.best[1].name == CNN
        del three[0].correct[CNN]
        with pytest.raises(CapsellaError, match="CNN"):
            judge_folds(larger, three)

    def test_the_words(self, plan, golden):
        texts = {
            "winner": judge_folds(plan, [self.fold(19, 13), self.fold(18, 13), self.fold(19, 12)]),
            "noise": judge_folds(plan, [self.fold(19, 18), self.fold(17, 19), self.fold(19, 18)]),
            "chance": judge_folds(plan, [self.fold(19, 11), self.fold(6, 9), self.fold(12, 10)]),
            "unfinished": judge_folds(plan, [self.fold(19, 13), self.fold(18, 13, (CNN,)), self.fold(19, 12)]),
        }
        assert texts["unfinished"].verdict.setting.unfinished == [CNN]
        lines = [f"# {name}\n{phrase(found.verdict)}\n" for name, found in texts.items()]
        golden("folds.txt", "\n".join(lines))
