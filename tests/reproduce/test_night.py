"""A reproduction from the command line to its page: killed and resumed it has the same numbers."""

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
from capsella.experiments import runner as grids
from capsella.papers.published import FIGURES, TABLES, paper_of
from capsella.reproduce import ImageCounts, Night, Planned, find_entries, jobs_of, make_plan, section
from capsella.reproduce.page import PAPERS
from capsella.reproduce.plan import Plan
from capsella.training import TrainingDivergedError
from tests.papers.tiny import QUIET
from tests.reproduce.made import NAME, registered, rows, table

ROOT = Path(capsella.__file__).parents[1]
CALL = (
    "from tests.reproduce.made import registered\nfrom capsella.cli import main\nwith registered():\n    main({words})"
)


def words(folder, *more):
    return ["papers", "reproduce", "--budget", "small", "--seeds", "2", "--out", str(folder), *more]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An unbroken reproduction."""
    made = tmp_path_factory.mktemp("medium") / "whole"
    with registered(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
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
    claims = json.loads((folder / "claims.json").read_text())["claims"]
    assert [claim["claim"] for claim in claims] == ["Capsules beat the CNN.", "Reconstruction helps."]
    assert {claim["answer"] for claim in claims} == {"cannot tell"}  # short trainings
    assert all("(short)" in claim["why"] for claim in claims)
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


def test_what_is_finished_is_not_trained_again(folder, monkeypatch, capsys):
    monkeypatch.setattr(grids, "train_or_resume", None)
    with registered():
        main(words(folder))
    assert "0 runs to come, 6 finished." in capsys.readouterr().out


def test_a_folder_of_another_budget_is_refused(folder, tmp_path):
    """Its runs would be judged as if they were of this one."""
    shutil.copytree(folder, tmp_path / "copy")
    with registered(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(TABLES, f"{NAME}-1", lambda budget: longer())
        patch.delitem(FIGURES, f"{NAME}-2")
        entries, _ = find_entries(None, "small", tmp_path / "copy", ImageCounts(tmp_path / "copy"), stand_ins=False)
        with pytest.raises(CapsellaError, match="epochs"):
            jobs_of(entries, 2)


def longer():
    changed = {slug: dataclasses.replace(row, recipe=dataclasses.replace(row.recipe, epochs=9))
               for slug, row in rows("small").items()}  # fmt: skip
    return dataclasses.replace(table("small"), rows=tuple(changed.values()))


def test_a_table_that_is_older_than_its_runs_is_made_again(folder, tmp_path):
    """A call was killed between the end of a run and the table."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with registered():
        entries, _ = find_entries(None, "small", copy, ImageCounts(copy), stand_ins=False)
        entry = next(one for one in entries if one.name == f"{NAME}-1")
        entry.numbers.write_text('{"rows": []}')
        night = Night(copy, entries, 2, QUIET)
        night.make(entry)
        assert entry.numbers.read_text() == '{"rows": []}'  # it is newer than they are
        os.utime(copy / f"{NAME}-1" / "caps-seed1" / "result.json")
        os.utime(entry.numbers, (0, 0))
        night.make(entry)
    assert json.loads(entry.numbers.read_text())["rows"][0]["slugs"] == ["cnn"]
    with registered():
        Night(copy, entries, 1, QUIET).make(entry)  # newer than its runs, but of two seeds
    assert json.loads(entry.numbers.read_text())["command"] == entry.command(1)


def test_a_damaged_cache_is_measured_anew(tmp_path):
    for name in ("images.json", "speeds.json"):
        (tmp_path / name).write_text('{"machine": {')
    with registered():
        main(words(tmp_path, "--dry-run", "--hours", "0.00001"))
    assert all(json.loads((tmp_path / name).read_text()) for name in ("images.json", "speeds.json"))


def test_a_table_of_attacks_stands_on_the_page(folder, tmp_path):
    """Its first row has the runs of each network by name."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with registered():
        entries, _ = find_entries(None, "small", copy, ImageCounts(copy), stand_ins=False)
        entry = next(one for one in entries if one.name == f"{NAME}-1")
        rows = [{"cells": ["none", "0", "95.0 ± 0.1"], "accuracy_percent": {"caps": [95.0]}, "runs": {"caps": []}}]
        heads = ["attack", "ε", "caps, accuracy %"]
        values = {"title": "t", "note": "", "measured": "", "command": "c", "heads": heads, "labels": 2, "rows": rows}
        entry.numbers.write_text(json.dumps(values))
        found = section.section_of(entry, 2, None)
    assert [cell.text for cell in found.rows[0]][:2] == ["none", "0"]
    assert not any(cell.interval for row in found.rows for cell in row)


def test_the_hours_count_from_the_call(tmp_path):
    with registered():
        entries, _ = find_entries(None, "small", tmp_path, ImageCounts(tmp_path), stand_ins=False)
        plan = make_plan(jobs_of(entries, 1), lambda job: 100.0, hours=0.09)  # 324 s: all three
        night = Night(tmp_path, entries, 1, QUIET, now=lambda: 1300.0, began=1000.0)  # 300 s are gone
        night.run(plan, lambda: None)
    assert [planned.job.row.slug for planned in night.late] == [planned.job.row.slug for planned in plan.runs]
    assert not numbers(tmp_path)


def test_a_dry_run_trains_nothing(tmp_path):
    with registered():
        main(words(tmp_path, "--dry-run", "--hours", "0.00001"))
    assert not list(tmp_path.glob("*/*/config.json"))


def test_every_paper_has_its_tables(tmp_path, monkeypatch):
    """Those of one table bear the paper's name alone."""
    monkeypatch.setattr("capsella.reproduce.entries._check_images", lambda published, counts: None)
    for paper in sorted({paper_of(name) for name in (*TABLES, *FIGURES)}):
        entries, missing = find_entries(paper, "small", tmp_path, ImageCounts(tmp_path), stand_ins=False)
        names = {entry.name for entry in entries} | set(missing)
        assert names == {name for name in (*TABLES, *FIGURES) if paper_of(name) == paper}
        assert names
        assert paper in PAPERS


@pytest.mark.parametrize("were_there", [False, True])
def test_images_that_are_not_at_hand_leave_a_table_out(tmp_path, were_there):
    def read(_):
        raise CapsellaError("bars are not there")

    with registered(), pytest.MonkeyPatch.context() as patch:
        if were_there:
            assert len(find_entries(None, "small", tmp_path, ImageCounts(tmp_path), stand_ins=False)[0]) == 2
        patch.setitem(catalogue._SOURCES, "bars", dataclasses.replace(catalogue._SOURCES["bars"], read=read))
        load._loaded.cache_clear()  # as in another process
        entries, missing = find_entries(None, "small", tmp_path, ImageCounts(tmp_path), stand_ins=False)
    assert entries == []
    assert missing == {f"{NAME}-1": "bars are not there", f"{NAME}-2": "bars are not there"}


def test_runs_that_no_longer_fit_are_left_out_and_one_that_diverges_is_a_result(tmp_path, monkeypatch):
    with registered():
        entries, _ = find_entries(None, "small", tmp_path, ImageCounts(tmp_path), stand_ins=False)
        jobs = jobs_of(entries, 1)
        plan = make_plan(jobs, lambda job: 100.0, hours=0.09)  # 324 s: all three
        clock = iter([0.0, 0.0, 250.0, 250.0, 250.0, 250.0])
        night = Night(tmp_path, entries, 1, QUIET, now=lambda: next(clock))

        def diverge(*_):
            raise TrainingDivergedError("the loss is nan")

        monkeypatch.setattr(grids, "train_or_resume", diverge)
        night.run(plan, lambda: None)
    assert len(plan.runs) == 3
    assert json.loads((plan.runs[0].job.run.path / "diverged.json").read_text()) == {"reason": "the loss is nan"}
    assert night.late == list(plan.runs[1:])
    assert isinstance(plan, Plan)
    assert all(isinstance(late, Planned) for late in night.late)


class TestThePage:
    def text(self, folder):
        return (folder / "report.html").read_text(encoding="utf-8")

    def test_it_asks_no_other_machine(self, folder):
        loads = re.findall(r"""(?:src|href|action|data)\s*=\s*["']([^"']+)""", self.text(folder))
        assert loads
        assert all(load.startswith(("#", "data:image/png;base64,")) for load in loads)

    def test_everything_is_on_it(self, folder):
        text = self.text(folder)
        for part in ("A paper, Table 1", "A paper, Figure 2", "Capsules beat the CNN.", "reproduce --budget small"):
            assert part in text, part
        assert text.count("data:image/png;base64,") == 2 + 1  # two seeds of the figure, curves of the table
        assert set(re.findall(r'href="#([^"]+)"', text)) <= set(re.findall(r'id="([^"]+)"', text))

    def test_a_short_training_says_so_in_its_cell(self, folder):
        values = json.loads((folder / f"{NAME}-1" / f"{NAME}-1.json").read_text())
        text = self.text(folder)
        for row in values["rows"]:
            assert re.search(rf">{re.escape(row['cells'][2])} <span class=\"mark\">\(short\)</span>", text)


def test_an_unknown_paper_is_an_error(tmp_path):
    with registered(), pytest.raises(SystemExit):
        main(["papers", "reproduce", "made2025", "--out", str(tmp_path)])
    assert os.listdir(tmp_path) == []
