"""A reproduction from the command line to its page: killed and resumed it has the same numbers."""

import contextlib
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
from capsella.errors import CapsellaError, CapsellaWarning
from capsella.grid import grid as grids
from capsella.papers.published import FIGURES, TABLES, paper_of
from capsella.reproduce import ImageCounts, Night, Planned, find_entries, jobs_of, make_plan, section
from capsella.reproduce.page import PAPERS, Reproduction, _left_out
from capsella.reproduce.plan import Plan
from capsella.training import TrainingDivergedError
from tests.papers.tiny import QUIET
from tests.reproduce.made import NAME, registered, rows, table

ROOT = Path(capsella.__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CALL = (
    "from tests.reproduce.made import registered\nfrom capsella.cli import main\nwith registered():\n    main({words})"
)


def words(folder, *more):
    return ["reproduce", "--budget", "small", "--seeds", "2", "--out", str(folder), *more]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An unbroken reproduction."""
    made = tmp_path_factory.mktemp("night") / "whole"
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
    monkeypatch.setattr(grids, "result_of", None)
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
        with pytest.raises(CapsellaError, match="recipe"):
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


def test_a_figure_without_its_picture_and_damaged_numbers_are_made_again(folder, tmp_path):
    """A call was killed while it drew, or a disk lost a part of a file."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with registered():
        entries, _ = find_entries(None, "small", copy, ImageCounts(copy), stand_ins=False)
        drawn, numbers = (next(one for one in entries if one.name == f"{NAME}-{n}") for n in (2, 1))
        picture, *_ = drawn.pictures(json.loads(drawn.numbers.read_text()))
        picture.unlink()
        numbers.numbers.write_text('{"rows": [')
        for entry in (drawn, numbers):
            with pytest.warns(CapsellaWarning, match="damaged") if entry is numbers else contextlib.nullcontext():
                Night(copy, entries, 2, QUIET).make(entry)
    assert picture.exists()
    assert json.loads(numbers.numbers.read_text())["rows"]


@pytest.mark.parametrize("kept", ["images.json", "speeds.json"])
@pytest.mark.parametrize("text", ['{"machine": {', "[]"])
def test_what_is_only_remembered_is_measured_anew_where_it_is_damaged(tmp_path, kept, text, capsys):
    (tmp_path / kept).write_text(text)
    with registered():
        main(words(tmp_path, "--dry-run", "--hours", "0.00001"))
    said = capsys.readouterr()
    assert f"{kept} is damaged; what it kept is measured anew" in said.err.replace("\n", " ")
    assert json.loads((tmp_path / kept).read_text())


def test_a_table_of_attacks_stands_on_the_page(folder, tmp_path):
    """Its first row has the runs of each network by name."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with registered():
        entries, _ = find_entries(None, "small", copy, ImageCounts(copy), stand_ins=False)
        entry = next(one for one in entries if one.name == f"{NAME}-1")
        attacked = ROOT / "results" / "hinton2018-attacks-night-smallnorb-jpeg.json"
        entry.numbers.write_text(attacked.read_text())
        found = section.section_of(entry, 2, None)
    assert [cell.text for cell in found.rows[0]][:2] == ["none", "0"]
    assert not any(cell.interval for row in found.rows for cell in row)


def test_a_run_that_needs_too_much_memory_is_named_and_the_others_are_trained(tmp_path, monkeypatch):
    with registered():
        entries, _ = find_entries(None, "small", tmp_path, ImageCounts(tmp_path), stand_ins=False)
        plan = make_plan(jobs_of(entries, 1), lambda job: 100.0, hours=None)
        trained = []

        def train(recipe, folder, *_):
            trained.append(folder.name)
            if len(trained) == 1:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
            return {}

        monkeypatch.setattr(grids, "result_of", train)
        night = Night(tmp_path, entries, 1, QUIET)
        night.run(plan, lambda: None)
        assert len(trained) == 3
        assert night.too_large == [plan.runs[0]]
        left_out = _left_out(Reproduction(night, {}, [], plan, "capsella reproduce"))
    assert left_out == {"The memory is not enough": [(plan.runs[0].job.row.cost, "0", "100 s")]}


def test_curves_are_named_as_the_rows_of_their_table(folder, tmp_path, monkeypatch):
    copy, drawn = tmp_path / "copy", []
    shutil.copytree(folder, copy)
    with registered():
        entries, _ = find_entries(None, "small", copy, ImageCounts(copy), stand_ins=False)
        entry = next(one for one in entries if one.name == f"{NAME}-1")
        values = json.loads(entry.numbers.read_text())
        values["rows"][0]["cells"][0] = "a CNN"
        entry.numbers.write_text(json.dumps(values))
        draw = section.learning_figure
        monkeypatch.setattr(section, "learning_figure", lambda *curves: drawn.extend(curves[0]) or draw(*curves))
        assert len(section.section_of(entry, 2, None).curves) == 1
    assert drawn == ["a CNN", "caps", "plain"]


def test_the_hours_count_from_the_call(tmp_path):
    with registered():
        entries, _ = find_entries(None, "small", tmp_path, ImageCounts(tmp_path), stand_ins=False)
        plan = make_plan(jobs_of(entries, 1), lambda job: 100.0, hours=0.09)  # 324 s: all three
        night = Night(tmp_path, entries, 1, QUIET, now=lambda: 1300.0, began=1000.0)  # 300 s are gone
        night.run(plan, lambda: None)
    assert [planned.job.row.slug for planned in night.late] == [planned.job.row.slug for planned in plan.runs]
    assert not numbers(tmp_path)


def test_a_dry_run_trains_nothing_and_says_what_is_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with registered():
        main(words(tmp_path, "--dry-run", "--hours", "0.00001"))
    out = capsys.readouterr().out
    assert "0 runs to come, 0 finished." in out
    assert len(re.findall(rf"^left out, \d+ s a run: {NAME}-1/\w+, seed 0 1$", out, re.M)) == 3
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


def test_without_any_images_it_says_why_once(tmp_path, capsys):
    def read(_):
        raise CapsellaError("bars are not there")

    with registered(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(catalogue._SOURCES, "bars", dataclasses.replace(catalogue._SOURCES["bars"], read=read))
        load._loaded.cache_clear()  # as in another process
        with pytest.raises(SystemExit, match="1"):
            main(words(tmp_path))
    said = capsys.readouterr()
    assert f"no table or figure has its images\nleft out {NAME}-1, {NAME}-2: bars are not there" in said.err
    assert "to come" not in said.out


def test_runs_that_no_longer_fit_are_left_out_and_one_that_diverges_is_a_result(tmp_path, monkeypatch):
    with registered():
        entries, _ = find_entries(None, "small", tmp_path, ImageCounts(tmp_path), stand_ins=False)
        jobs = jobs_of(entries, 1)
        plan = make_plan(jobs, lambda job: 100.0, hours=0.09)  # 324 s: all three
        clock = iter([0.0, 0.0, 250.0, 250.0, 250.0, 250.0])
        night = Night(tmp_path, entries, 1, QUIET, now=lambda: next(clock))

        def diverge(*_):
            raise TrainingDivergedError("the loss is nan")

        monkeypatch.setattr(grids, "result_of", diverge)
        night.run(plan, lambda: None)
    assert len(plan.runs) == 3
    assert json.loads((plan.runs[0].job.run.path / "diverged.json").read_text()) == {"reason": "the loss is nan"}
    assert night.late == list(plan.runs[1:])
    assert isinstance(plan, Plan)
    assert all(isinstance(late, Planned) for late in night.late)


def test_what_was_left_out_is_tried_where_others_were_quicker(tmp_path, monkeypatch):
    with registered():
        entries, _ = find_entries(None, "small", tmp_path, ImageCounts(tmp_path), stand_ins=False)
        jobs = jobs_of(entries, 1)
        plan = make_plan(jobs, lambda job: 1000.0, hours=0.3)  # 1,080 s: one of three
        assert (len(plan.runs), len(plan.left_out)) == (1, 2)
        trained = []

        def train(recipe, folder, *_):
            trained.append(folder.name)
            return {}

        monkeypatch.setattr(grids, "result_of", train)
        Night(tmp_path, entries, 1, QUIET, now=lambda: 0.0).run(plan, lambda: None)
    assert len(trained) == 3


class TestThePage:
    def text(self, folder):
        return (folder / "report.html").read_text(encoding="utf-8")

    def test_it_asks_no_other_machine(self, folder):
        text = self.text(folder)
        loads = re.findall(r"""(?:src|href|action|data)\s*=\s*["']([^"']+)""", text) + re.findall(
            r"url\(([^)]+)\)", text
        )
        assert loads
        assert all(load.startswith(("#", "data:image/png;base64,")) for load in loads)
        assert "@import" not in text

    def test_everything_is_on_it(self, folder):
        text = self.text(folder)
        for part in (
            "A paper, Table 1",
            "A paper, Figure 2",
            "What differs.",
            "Capsules beat the CNN.",
            "6 of 6 runs are finished.",
            "capsella reproduce --budget small --seeds 2",
            f"capsella table {NAME}-1 --budget small --seeds 0 1",
            "two crossed random effects",
        ):
            assert part in text, part
        assert text.count("data:image/png;base64,") == 2 + 1  # two seeds of the figure, curves of the table
        anchors = set(re.findall(r'href="#([^"]+)"', text))
        assert anchors <= set(re.findall(r'id="([^"]+)"', text))

    def test_a_short_training_says_so_in_its_cell(self, folder):
        values = json.loads((folder / f"{NAME}-1" / f"{NAME}-1.json").read_text())
        text = self.text(folder)
        for row in values["rows"]:
            assert re.search(rf">{re.escape(row['cells'][2])} <span class=\"mark\">\(short\)</span>", text)

    @pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")
    @pytest.mark.parametrize("width", [360, 1200])
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_in_a_browser(self, folder, width, scheme):
        api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
        with api.sync_playwright() as playwright:
            flags = ["--headless", "--no-sandbox", "--disable-gpu"]
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
            tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            asked, complaints = set(), []
            tab.on("request", lambda request: asked.add(request.url.split(":")[0]))
            tab.on("pageerror", lambda error: complaints.append(str(error)))
            tab.goto((folder / "report.html").as_uri())
            overflow = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            shown = tab.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 100)")
            ink, paper = (
                tab.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
            )
            tab.click("nav a[href='#claims']")
            browser.close()
        assert asked <= {"file", "data"}
        assert complaints == []
        assert overflow <= 0
        assert shown
        light, dark = (sum(map(int, re.findall(r"\d+", one)[:3])) for one in (paper, ink))
        assert (light > dark) == (scheme == "light")


def test_an_unknown_paper_is_named(tmp_path, capsys):
    with registered(), pytest.raises(SystemExit):
        main(["reproduce", "made2025", "--out", str(tmp_path)])
    assert "did you mean made2026" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
