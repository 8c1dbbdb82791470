import dataclasses
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import capsella
from capsella.data import FolderData
from capsella.errors import CapsellaError
from capsella.experiments import Task
from capsella.experiments import fit as runs
from capsella.papers import get_recipe
from capsella.training import ModelOptions, Recipe
from tools import results
from tools.results import HEADER, markdown

ROOT = Path(capsella.__file__).parents[1]
RESULT = {
    "command": "capsella train demo --epochs 3",
    "seed": 0,
    "environment": {"gpu": "none", "threads": 2, "cpu": "A processor"},
    "recipe": dataclasses.replace(get_recipe("demo"), epochs=3).to_dict(),
    "test": {"images": 359, "errors": 7, "error_percent": 1.9499, "error_interval_95_percent": [0.9474, 3.9706]},
    "training": {"best": {"epoch": 2}, "epochs": 3, "images_per_second": 123.456, "peak_memory_mib": 800.4},
}


def test_a_result_is_a_row(tmp_path):
    on_gpu = {**RESULT, "environment": {"gpu": "A GPU", "threads": 2, "cpu": "A processor"}}
    (tmp_path / "second.json").write_text(json.dumps(on_gpu))
    (tmp_path / "first.json").write_text(json.dumps(RESULT))
    (tmp_path / "notes.txt").write_text("no result")
    row = "`capsella train demo --epochs 3` | 1.95 (short) | 0.95–3.97 | 2 of 3 | 123 | 800"
    text = markdown(tmp_path)
    assert text == f"{HEADER}| first | {row} | 2 threads, A processor |\n| second | {row} | A GPU |\n"
    columns = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert columns == {9}


def row(p50, rate):
    return {"latency_ms": {"p50": p50}, "throughput": {"images_per_second": rate}}


def test_latencies_are_a_section(tmp_path):
    values = {
        "command": "capsella bench '*'",
        "settings": {"backends": ["eager", "native", "openvino"]},
        "environment": {"gpu": "none", "threads": 2, "cpu": "A processor", "torch": "2.13.0"},
        "networks": {
            "fast": {
                "size": [1, 28, 28], "unavailable": {}, "backends": {"eager": row(9.94, 120.4), "native": row(4.06, 80)}
            },
            "slow": {"size": [3, 96, 128], "unavailable": {"native": "no routing"}, "backends": {"eager": row(50, 20)}},
            "none": {"size": [3, 96, 128], "unavailable": {"eager": "differs"}, "backends": {}},
        },
    }  # fmt: skip
    (tmp_path / "cpu.json").write_text(json.dumps(values))
    section = markdown(tmp_path).removeprefix(HEADER)
    assert section.startswith("\n## Latency: cpu\n\n`capsella bench '*'`. One image a call: ")
    assert "2 threads, A processor; torch 2.13.0." in section
    head, rule, *rows = [line for line in section.splitlines() if line.startswith("|")]
    assert head == "| network | image | fastest | p50 ms | under 50 ms | images/s | eager | native | openvino |"
    assert rule.count("|") == head.count("|")
    assert rows == [
        "| fast | 28×28×1 | native | 4.1 | yes | 120 | 9.9 | 4.1 |  |",
        "| slow | 96×128×3 | eager | 50.0 | no | 20 | 50.0 |  |  |",
        "| none | 96×128×3 | none |  | no |  |  |  |  |",
    ]
    assert section.endswith("\nNot measured:\n\n- slow, native: no routing\n- none, eager: differs\n")


def test_no_results_yet(tmp_path):
    assert markdown(tmp_path) == HEADER


def test_a_figure_is_a_section_with_its_picture(tmp_path):
    (tmp_path / "figures").mkdir()
    numbers, picture = tmp_path / "figures" / "one.json", tmp_path / "figures" / "one.png"
    numbers.write_text(
        json.dumps({"title": "Figure 1", "command": "capsella figure 1", "measured": "M.", "note": "N."})
    )
    with pytest.raises(CapsellaError) as error:
        markdown(tmp_path)
    assert str(error.value) == f"{picture} must be there, the picture of the numbers beside it"
    picture.write_bytes(b"")
    section = "\n## Figure 1\n\n`capsella figure 1`. M. N.\n\n![Figure 1](../../results/figures/one.png)\n"
    assert markdown(tmp_path) == HEADER + section
    numbers.write_text("{}")
    with pytest.raises(CapsellaError, match=r"one\.json is not the numbers of a figure: KeyError\('command'\)"):
        markdown(tmp_path)


@pytest.mark.parametrize("missing", ["test", "training", "environment", "command"])
def test_a_file_that_lacks_a_field_is_named(tmp_path, missing):
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({key: value for key, value in RESULT.items() if key != missing}))
    with pytest.raises(CapsellaError) as error:
        markdown(tmp_path)
    assert str(error.value) == f"{path} is not the result of a run or a table: KeyError('{missing}')"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"test": 1, "training": 1, "environment": 1, "command": 1}'])
def test_a_damaged_file_is_named(tmp_path, text):
    path = tmp_path / "damaged.json"
    path.write_text(text)
    with pytest.raises(CapsellaError, match="is not the result of a run or a table: ") as error:
        markdown(tmp_path)
    assert str(error.value).startswith(str(path))


def test_the_committed_page_is_what_the_committed_results_make():
    page = ROOT / "docs" / "reference" / "results.md"
    assert page.read_text(encoding="utf-8") == markdown(ROOT / "results"), "run `make results`"


def test_the_command_of_the_makefile_prints_the_page(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["results", str(ROOT / "results")])
    runpy.run_path(results.__file__, run_name="__main__")
    assert capsys.readouterr().out == markdown(ROOT / "results")


@pytest.fixture
def recipe(tmp_path):
    """CapsNet for one epoch on a dozen images of noise."""
    random = np.random.default_rng(0)
    for kind in ("a", "b"):
        (tmp_path / "noise" / kind).mkdir(parents=True)
        for number in range(6):
            pixels = random.integers(0, 256, (17, 17), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "noise" / kind / f"{number}.png")
    data = FolderData(tmp_path / "noise")
    return Recipe(model=ModelOptions("sabour2017_capsnet"), data=data, epochs=1, batch_size=4)


def result_of(recipe, folder):
    task = Task(recipe=recipe, folder=folder, label="mine", recipe_name="mine")
    task.run(Console(quiet=True))
    return task.result()


def test_a_run_is_trained_once_and_then_read(recipe, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    values = result_of(recipe, folder)
    assert values == json.loads((folder / "result.json").read_text())
    assert values["data"] == "noise"
    assert values["test"]["images"] == 2
    assert values["test"]["error_percent"] == 50 * values["test"]["errors"]
    assert values["command"] == "capsella train config.json"
    assert Recipe.from_dict(values["recipe"]) == recipe
    assert values["training"]["epochs"] == 1
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine.json").write_bytes((folder / "result.json").read_bytes())
    assert markdown(tmp_path / "results").splitlines()[-1].startswith("| mine | `capsella train config.json`")

    monkeypatch.setattr(runs, "train", None)  # neither is called again
    monkeypatch.setattr(runs, "resume", None)
    assert result_of(recipe, folder) == values


def test_a_run_that_was_not_tested_yet_is_resumed(recipe, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr(runs, "evaluate", lambda *_, **__: {}["interrupted"])
    with pytest.raises(KeyError, match="interrupted"):
        result_of(recipe, folder)
    monkeypatch.undo()
    monkeypatch.setattr(runs, "train", None)
    assert result_of(recipe, folder)["test"]["images"] == 2
