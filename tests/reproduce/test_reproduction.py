"""A reproduction from its plan to its page."""

import dataclasses
import json
import re

import pytest

from capsella.cli import main
from capsella.data import catalogue, load
from capsella.errors import CapsellaError
from capsella.experiments import runner
from capsella.experiments.reproduce import find_entries
from capsella.experiments.reproduce.page import PAPERS
from capsella.papers.published import FIGURES, TABLES, paper_of
from tests.reproduce.made import NAME, registered


def words(folder, *more):
    return ["papers", "reproduce", "--budget", "small", "--seeds", "2", "--out", str(folder), *more]


def entries_in(folder):
    return find_entries(None, "small", 2, folder, stand_ins=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished reproduction."""
    made = tmp_path_factory.mktemp("reproduction") / "whole"
    with registered():
        main(words(made))
    return made


def test_all_runs_and_one_page(folder):
    runs = sorted(path.parent.name for path in folder.glob("*/*/result.json"))
    assert runs == [f"{slug}-seed{seed}" for slug in ("caps", "cnn", "plain") for seed in (0, 1)]
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


def test_what_is_finished_is_not_trained_again(folder, monkeypatch):
    monkeypatch.setattr(runner, "train_or_resume", None)
    with registered():
        main(words(folder))


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
