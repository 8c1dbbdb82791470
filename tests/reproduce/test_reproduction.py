"""A reproduction from its plan to its page: killed and resumed it has the same numbers."""

import dataclasses
import json
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
from capsella.experiments import runner
from capsella.experiments.reproduce import find_entries, reproduce
from capsella.experiments.reproduce.page import PAPERS
from capsella.papers.published import FIGURES, TABLES, paper_of
from tests.papers.tiny import QUIET
from tests.reproduce.made import NAME, registered, rows, table

ROOT = Path(capsella.__file__).parents[1]
CALL = (
    "from tests.reproduce.made import registered\nfrom capsella.cli import main\nwith registered():\n    main({words})"
)


def words(folder, *more):
    return ["papers", "reproduce", "--budget", "small", "--seeds", "2", "--out", str(folder), *more]


def entries_in(folder):
    return find_entries(None, "small", 2, folder, stand_ins=False)


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
    values = json.loads((folder / f"{NAME}-1" / f"{NAME}-1.json").read_text())
    assert values["rows"][0]["slugs"] == ["cnn"]
    text = (folder / "report.html").read_text(encoding="utf-8")
    for part in ("A paper, Table 1", "A paper, Figure 2", "Capsules beat the CNN.", "reproduce --budget small"):
        assert part in text, part
    assert text.count("data:image/") == 1 + 1  # the figure, and the findings
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(re.findall(r'id="([^"]+)"', text))
    for row in values["rows"]:  # a short training is marked in its cell
        assert re.search(rf">{re.escape(row['cells'][2])} <span class=\"mark\">\(short\)</span>", text)


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
        entries, missing = entries_in(tmp_path / "copy")
        with pytest.raises(CapsellaError, match="epochs"):
            reproduce(tmp_path / "copy", entries, missing, "", QUIET)


def test_a_table_that_needs_too_much_memory_does_not_end_the_others(tmp_path, monkeypatch):
    tried = []

    def train(recipe, folder, *_):
        tried.append(folder.name)
        raise MemoryError

    monkeypatch.setattr(runner, "train_or_resume", train)
    with registered():
        reproduce(tmp_path, *entries_in(tmp_path), "", QUIET)
    assert len(tried) == 2
    assert (tmp_path / "report.html").read_text().count("memory") == 2


def test_a_dry_run_trains_nothing(tmp_path, capsys):
    with registered():
        main(words(tmp_path / "new", "--dry-run"))
    assert not (tmp_path / "new").exists()
    assert "6" in capsys.readouterr().out


def test_every_paper_has_its_tables(tmp_path, monkeypatch):
    missing_images = "capsella.experiments.reproduce.entries._missing_images"
    monkeypatch.setattr(missing_images, lambda of: "missing" if of.family == "forslov2018" else "")  # read for rows
    entries, missing = entries_in(tmp_path)
    assert {entry.name for entry in entries} | set(missing) == {*TABLES, *FIGURES}
    assert {paper_of(name) for name in (*TABLES, *FIGURES)} <= set(PAPERS)


def test_images_that_are_not_at_hand_leave_a_table_out(tmp_path):
    def read(_):
        raise CapsellaError("bars are not there")

    with registered(), pytest.MonkeyPatch.context() as patch:
        assert len(entries_in(tmp_path)[0]) == 2
        patch.setitem(catalogue._SOURCES, "bars", dataclasses.replace(catalogue._SOURCES["bars"], read=read))
        load._loaded.cache_clear()  # as in another process
        assert entries_in(tmp_path) == ([], dict.fromkeys([f"{NAME}-1", f"{NAME}-2"], "bars are not there"))
