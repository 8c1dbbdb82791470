"""A reproduction from its plan to its page: killed and resumed it has the same numbers."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import capsella
from capsella.cli import main
from capsella.data import catalogue, load
from capsella.errors import CapsellaError
from capsella.experiments import Row, runner
from capsella.experiments.reproduce import Measurements, Reproduction, Training, find_entries, make_plan, trainings_of
from capsella.experiments.reproduce.page import PAPERS
from capsella.papers.published import FIGURES, TABLES, paper_of
from capsella.training.loop import StepTime
from tests.papers.tiny import CAPSNET, QUIET
from tests.reproduce.made import NAME, registered, rows, table

ROOT = Path(capsella.__file__).parents[1]
SECONDS = {"slow": 3000.0, "quick": 600.0, "middle": 1200.0}
CALL = (
    "from tests.reproduce.made import registered\nfrom capsella.cli import main\nwith registered():\n    main({words})"
)


def words(folder, *more):
    return ["papers", "reproduce", "--budget", "small", "--seeds", "2", "--out", str(folder), *more]


def entries_in(folder):
    return find_entries(None, "small", folder, Measurements(folder), stand_ins=False)


def opened(folder, seeds=2, hours=None, **changes):
    """A reproduction of which every run takes 100 seconds."""
    entries, missing = entries_in(folder)
    plan = make_plan(trainings_of(entries, seeds, lambda recipe: 100.0), hours)
    return Reproduction(folder, entries, missing, plan, seeds, "capsella papers reproduce", QUIET, **changes)


class TestPlan:
    def planned(self, folder, hours):
        return make_plan(
            [
                Training(Row(slug=slug, recipe_name="", recipe=CAPSNET).task(folder, seed), (), SECONDS[slug])
                for slug in SECONDS
                for seed in range(3 if slug != "middle" else 1)
            ],
            hours,
        )

    def names(self, runs):
        return [(training.task.cost, training.task.recipe.seed) for training in runs]

    def test_every_row_has_its_first_seed_before_any_has_its_second(self, tmp_path):
        plan = self.planned(tmp_path, None)
        assert self.names(plan.runs) == [
            *(("quick", 0), ("middle", 0), ("slow", 0)),
            *(("quick", 1), ("slow", 1), ("quick", 2), ("slow", 2)),
        ]
        assert (plan.left_out, plan.seconds) == ((), 3 * 3000 + 3 * 600 + 1200)

    def test_what_does_not_fit_is_left_out_and_quicker_runs_still_come(self, tmp_path):
        plan = self.planned(tmp_path, 1.0)  # 3,600 s
        assert self.names(plan.runs) == [("quick", 0), ("middle", 0), ("quick", 1), ("quick", 2)]
        assert self.names(plan.left_out) == [("slow", 0), ("slow", 1), ("slow", 2)]
        assert self.planned(tmp_path, 0.01).runs == ()

    def test_what_is_over_is_not_planned_and_what_was_begun_takes_less(self, tmp_path):
        for name, file in (("quick-seed0", "result.json"), ("quick-seed1", "diverged.json")):
            (tmp_path / name).mkdir()
            (tmp_path / name / file).write_text("{}")
        begun = tmp_path / "middle-seed0"
        begun.mkdir()
        (begun / "last.ckpt").write_bytes(b"")
        lines = ["epoch,step", *(f"{n},{n}" for n in range(1, CAPSNET.epochs + 1))]
        (begun / "metrics.csv").write_text("\n".join(lines) + "\n")
        plan = self.planned(tmp_path, None)
        assert len(plan.over) == 2
        assert (plan.runs[0].task.cost, plan.runs[0].remaining) == ("middle", 0)  # it is only to be tested

    def test_a_network_is_timed_once_and_remembered(self, tmp_path):
        calls = []

        def measure(recipe):
            calls.append(recipe.model.name)
            return StepTime(step=2.0, image=0.5)

        with registered():
            recipes = [row.recipe for row in rows("small").values()]
            for _ in range(2):
                measured = Measurements(tmp_path, measure)
                # 36 training images in batches of 12, 12 to validate in each of 3 epochs, 24 to test
                assert [measured.seconds(recipe) for recipe in recipes] == [3 * (3 * 2.0 + 12 * 0.5) + 24 * 0.5] * 3
            assert len(calls) == 3
            measured.machine = "another"
            measured.seconds(recipes[0])
            (tmp_path / "measured.json").write_text('{"dama')
            assert Measurements(tmp_path, measure).counts(recipes[0].data) == (36, 12, 24)
        assert len(calls) == 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An unbroken reproduction."""
    made = tmp_path_factory.mktemp("reproduction") / "whole"
    with registered():
        main(words(made))
    return made


def numbers(folder):
    """What the runs found, without times."""
    found = {}
    for path in sorted(folder.glob("*/*/result.json")):
        values = json.loads(path.read_text())
        best = values["training"]["best"]
        found[path.parent.name] = values["test"], best["train_loss"], best["validation_loss"], best["step"]
    return found


def test_all_runs_and_one_page(folder):
    assert sorted(numbers(folder)) == [f"{slug}-seed{seed}" for slug in ("caps", "cnn", "plain") for seed in (0, 1)]
    findings = json.loads((folder / "findings.json").read_text())["findings"]
    assert [finding["claim"] for finding in findings] == ["Capsules beat the CNN.", "Reconstruction helps."]
    assert {finding["answer"] for finding in findings} == {"not tested"}  # short trainings
    assert json.loads((folder / f"{NAME}-1" / f"{NAME}-1.json").read_text())["rows"][0]["slugs"] == ["cnn"]


@pytest.mark.slow
def test_killed_and_resumed_the_numbers_are_the_same(folder, tmp_path):
    broken = tmp_path / "broken"
    call = [sys.executable, "-c", CALL.format(words=words(broken))]
    process = subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for _ in range(1500):
            if list(broken.glob("*/*-seed1/metrics.csv")):
                break
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert len(numbers(broken)) < 6
    with registered():
        main(words(broken))
    assert numbers(broken) == numbers(folder)


def test_what_is_finished_is_not_trained_again(folder, monkeypatch):
    monkeypatch.setattr(runner, "train_or_resume", None)
    with registered():
        main(words(folder))


def test_runs_of_another_budget_are_refused(folder, tmp_path):
    """They would be judged as if they were of this one."""
    shutil.copytree(folder, tmp_path / "copy")
    changed = {
        slug: dataclasses.replace(row, recipe=dataclasses.replace(row.recipe, epochs=9))
        for slug, row in rows("small").items()
    }
    longer = dataclasses.replace(table("small"), rows=tuple(changed.values()))
    with registered(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(TABLES, f"{NAME}-1", lambda budget: longer)
        patch.delitem(FIGURES, f"{NAME}-2")
        with pytest.raises(CapsellaError, match="epochs"):
            opened(tmp_path / "copy")


def test_a_table_that_is_older_than_its_runs_is_made_again(folder, tmp_path):
    """A call was killed between the end of a run and the table."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with registered():
        reproduction = opened(copy)
        entry = next(entry for entry in reproduction.entries if entry.name == f"{NAME}-1")
        newer = json.dumps({"rows": [], "command": entry.command(2)})
        entry.numbers.write_text(newer)
        reproduction.make(entry)
        assert entry.numbers.read_text() == newer
        os.utime(copy / f"{NAME}-1" / "caps-seed1" / "result.json")
        os.utime(entry.numbers, (0, 0))
        reproduction.make(entry)
        assert json.loads(entry.numbers.read_text())["rows"][0]["slugs"] == ["cnn"]


def test_the_hours_count_from_the_call(tmp_path):
    with registered():
        reproduction = opened(tmp_path, seeds=1, hours=0.09, began=time.monotonic() - 300)  # of 324 s
        assert len(reproduction.plan.runs) == 3
        reproduction.run()
    assert reproduction.late == list(reproduction.plan.runs)
    assert not numbers(tmp_path)


def test_a_run_that_needs_too_much_memory_does_not_end_the_others(tmp_path, monkeypatch):
    tried = []

    def train(recipe, folder, *_):
        tried.append(folder.name)
        raise MemoryError

    monkeypatch.setattr(runner, "train_or_resume", train)
    with registered():
        reproduction = opened(tmp_path, seeds=1)
        reproduction.run()
    assert len(tried) == 3
    assert reproduction.too_large == list(reproduction.plan.runs)


def test_a_dry_run_trains_nothing(tmp_path):
    with registered():
        main(words(tmp_path, "--dry-run", "--hours", "0.00001"))
    assert not list(tmp_path.glob("*/*/config.json"))


def test_every_paper_has_its_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(Measurements, "check", lambda self, published: None)
    entries, missing = entries_in(tmp_path)
    assert {entry.name for entry in entries} | set(missing) == {*TABLES, *FIGURES}
    assert {paper_of(name) for name in (*TABLES, *FIGURES)} <= set(PAPERS)


@pytest.mark.parametrize("were_there", [False, True])
def test_images_that_are_not_at_hand_leave_a_table_out(tmp_path, were_there):
    def read(_):
        raise CapsellaError("bars are not there")

    with registered(), pytest.MonkeyPatch.context() as patch:
        if were_there:
            assert len(entries_in(tmp_path)[0]) == 2
        patch.setitem(catalogue._SOURCES, "bars", dataclasses.replace(catalogue._SOURCES["bars"], read=read))
        load._loaded.cache_clear()  # as in another process
        assert entries_in(tmp_path) == ([], dict.fromkeys([f"{NAME}-1", f"{NAME}-2"], "bars are not there"))


class TestThePage:
    def text(self, folder):
        return (folder / "report.html").read_text(encoding="utf-8")

    def test_everything_is_on_it(self, folder):
        text = self.text(folder)
        for part in ("A paper, Table 1", "A paper, Figure 2", "Capsules beat the CNN.", "reproduce --budget small"):
            assert part in text, part
        assert text.count("data:image/") == 2 + 1 + 1  # two seeds of the figure, curves of the table, findings
        assert set(re.findall(r'href="#([^"]+)"', text)) <= set(re.findall(r'id="([^"]+)"', text))

    def test_a_short_training_is_marked_in_its_cell(self, folder):
        values = json.loads((folder / f"{NAME}-1" / f"{NAME}-1.json").read_text())
        text = self.text(folder)
        for row in values["rows"]:
            assert re.search(rf">{re.escape(row['cells'][2])} <span class=\"mark\">\(short\)</span>", text)
