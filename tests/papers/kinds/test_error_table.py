"""A table from its runs to its page, on scikit-learn's digits, in seconds."""

import dataclasses
import json

import pytest
from rich.console import Console

from capsella.cli import main
from capsella.data import DataOptions
from capsella.errors import CapsellaError
from capsella.grid import Budget
from capsella.grid import run as runs
from capsella.losses import LossOptions
from capsella.papers.kinds.error_table import ErrorRow, ErrorTable, error_cells
from capsella.papers.kinds.published import NOT_RUN, cells_and_marks, hardware_of, marked_cells, table_values
from capsella.papers.published import TABLES
from capsella.routing import EMRouting
from capsella.training import ModelOptions, Recipe, TrainingDivergedError
from capsella.training.registry import RECIPES
from tools.results import markdown

TINY = Budget(per_class=3, validation_per_class=1, test_per_class=2, epochs=1, batch_size=16)
RECIPE = Recipe(
    model=ModelOptions("hinton2018_matrix_capsnet_small", {"routing": EMRouting(iterations=1)}),
    data=DataOptions(name="digits", size=17, validation=0.02),
    loss=LossOptions(name="spread"),
)
QUIET = Console(quiet=True)


def tiny_table(budget="small"):
    """Two rows: one iteration, which a paper has, and random couplings, which it has not."""
    rows = [
        ErrorRow(slug=start, recipe_name="tiny", recipe=TINY.limit(recipe), label=("1", start), paper=paper)
        for start, paper in (("even", 9.7), ("random", None))
        for recipe in [RECIPE.with_model(routing=EMRouting(iterations=1, start=start))]
    ]
    return ErrorTable("A paper, Table 1", f"Budget: {TINY}.", ("iterations", "start"), tuple(rows))


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(TABLES, "tiny", tiny_table)
    monkeypatch.setitem(RECIPES, "tiny", lambda: RECIPE)
    monkeypatch.setenv("COLUMNS", "160")


def test_a_table_from_the_command_line_to_the_page(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "mine"
    words = ["table", "tiny", "--seeds", "0", "1", "--out", str(folder)]
    main(words)
    out = capsys.readouterr().out
    values = json.loads((folder / "mine.json").read_text())
    assert [row["label"] for row in values["rows"]] == [["1", "even"], ["1", "random"]]
    assert [row["paper_error_percent"] for row in values["rows"]] == [9.7, None]
    assert values["command"] == "capsella table tiny --budget small --seeds 0 1"
    for row in values["rows"]:
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        for run in row["runs"]:
            recipe = Recipe.from_dict(run["recipe"])
            assert recipe.model.options["routing"].start == row["label"][1]
            assert (recipe.data.test_per_class, run["test"]["images"]) == (2, 20)
            assert (recipe.data.per_class, recipe.epochs, recipe.batch_size) == (3, 1, 16)
            assert run["training"]["best"]["train_images"] == 30
            assert ("--model.routing.start random" in run["command"]) == (row["label"][1] == "random")
    for text in (
        "A paper, Table 1",
        "Test error on digits, 20 images; mean ± standard deviation over 2 seeds",
        "run 4 of 4: random, seed 1",
        "Budget: 3 training, 1 validation and 2 test",
    ):
        assert text in " ".join(out.split())  # the name of the processor decides where lines break
    for cells in marked_cells(values):
        assert all(cell in out for cell in cells)
    assert all(cells[4] == "–" for cells in marked_cells(values))  # no gap of a short training to the paper

    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine.json").write_bytes((folder / "mine.json").read_bytes())
    page = markdown(tmp_path / "results").partition("\n## A paper, Table 1: mine\n")[2]
    assert "`capsella table tiny --budget small --seeds 0 1`" in page
    assert "on digits, 20 images; mean ± standard deviation over 2 seeds" in page
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {8}  # without the empty gaps
    assert lines[2:] == [f"| {' | '.join(cells[:4] + cells[5:])} |" for cells in marked_cells(values)]
    assert all(f"{row['cells'][3]} (short)" in page for row in values["rows"])
    assert "**Short trainings**" in page

    monkeypatch.setattr(runs, "train", None)  # what is finished is read
    monkeypatch.setattr(runs, "resume", None)
    main(words)
    assert json.loads((folder / "mine.json").read_text()) == values


def test_cells_by_hand():
    def run(error, loss):
        best = {"train_loss": loss, "validation_loss": 2 * loss}
        return {"test": {"error_percent": error}, "training": {"best": best, "images_per_second": 100 * loss}}

    two = [run(4.0, 0.1), run(6.0, 0.3)]
    assert error_cells(1.8, two) == ["1.8", "5.00 ± 1.41", "+3.20", "0.2000", "0.4000", "20"]
    assert error_cells(None, two[:1]) == ["–", "4.00", "–", "0.1000", "0.2000", "10"]
    assert error_cells(0.25, two[:1], 0.005)[:3] == ["0.25 ± 0.005", "4.00", "+3.75"]


def test_a_cell_for_every_head():
    texts = {"title": "t", "note": "", "measured": "", "command": "c"}
    with pytest.raises(ValueError, match=r"cells: must be 2, one for each of \['a', 'b'\], got \['1'\]"):
        table_values(**texts, labels=["a"], columns=["b"], rows=[{"cells": ["1"]}])


def test_what_diverged_is_named_in_its_cell(tmp_path):
    for name in ("a-seed0", "b-seed1", "ab-seed0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "diverged.json").write_text("{}")
    rows = [
        {"cells": ["1.0", NOT_RUN, "2.0", "3.0"], "slugs": ["a", "b"]},
        {"cells": ["1.0", "4.0", "2.0", "5.0"], "slugs": ["c", "c"]},
    ]
    texts = {"title": "t", "note": "", "measured": "", "command": "c", "labels": []}
    values = table_values(**texts, columns=["x paper", "x ours", "y paper", "y ours"], rows=rows, folder=tmp_path)
    assert [row["cells"] for row in values["rows"]] == [
        ["1.0", "diverged", "2.0", "3.0 (1 seed diverged)"],
        rows[1]["cells"],
    ]


def test_every_processor_is_named_once():
    def run(gpu, cpu, threads):
        return {"environment": {"gpu": gpu, "cpu": cpu, "threads": threads}}

    one, two, gpu = run("none", "abacus", 1), run("none", "slide rule", 2), run("loom", "abacus", 1)
    assert hardware_of({"a": [one, two], "b": [one, gpu]}) == "1 thread, abacus and 2 threads, slide rule and loom"


def test_a_missing_source_is_found_before_the_first_training(tmp_path):
    first, second = tiny_table().rows
    data = dataclasses.replace(second.recipe.data, name="nowhere")
    rows = (first, dataclasses.replace(second, recipe=dataclasses.replace(second.recipe, data=data)))
    with pytest.raises(ValueError, match="name: must be a registered name"):
        dataclasses.replace(tiny_table(), rows=rows).run(tmp_path, [0], "", QUIET)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_table_goes_on(tmp_path, monkeypatch):
    trained = []
    usual = runs.train

    def train(recipe, folder, **options):
        if len(trained) == 1:
            raise KeyboardInterrupt
        trained.append(folder.name)
        return usual(recipe, folder, **options)

    monkeypatch.setattr(runs, "train", train)
    with pytest.raises(KeyboardInterrupt):
        tiny_table().run(tmp_path, [0], "", QUIET)
    monkeypatch.setattr(runs, "train", usual)
    values = tiny_table().run(tmp_path, [0], "", QUIET)
    assert trained == ["even-seed0"]
    assert len(values["rows"]) == 2


def test_a_run_of_another_recipe_is_not_taken_for_ours(tmp_path):
    folder = tmp_path / "even-seed0"
    runs.result_of(tiny_table().rows[0].recipe, folder, "tiny", QUIET)
    other = dataclasses.replace(tiny_table().rows[0].recipe, epochs=2)
    with pytest.raises(CapsellaError, match="even-seed0 holds a run of another recipe; choose another folder"):
        runs.result_of(other, folder, "tiny", QUIET)


def test_other_images():
    table = tiny_table().on("mnist")
    assert [row.recipe.data.name for row in table.rows] == ["mnist", "mnist"]
    assert [row.recipe.data.per_class for row in table.rows] == [3, 3]


@pytest.mark.parametrize("seeds", [[], [0, 1, 0]])
def test_seeds_must_be_some_and_different(seeds, tmp_path):
    with pytest.raises(ValueError, match="seeds: must be at least one, and each only once, got "):
        tiny_table().run(tmp_path, seeds, "", QUIET)


@pytest.mark.parametrize("words", [["table"], ["table", "--help"], ["table", "tinyy"]])
def test_without_a_known_name_the_tables_are_listed(words, capsys):
    code = 0
    try:
        main(words)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert all(name in out for name in TABLES)
    assert "A paper, Table 1" in out
    assert code == (words[-1] == "tinyy")
    assert ("did you mean tiny?" in err) == (words[-1] == "tinyy")


def test_a_state_stands_in_place_of_the_table_s_mark_and_takes_the_gap():
    night = {"heads": ["row", "paper %", "ours %", "gap"], "command": "capsella table x --budget night"}
    rows = [{"cells": ["a", "1.0", "3.0", "+2.0"], "slugs": ["a"]}, {"cells": ["a − b", "", "+2.0", "+1.0"]}]
    assert cells_and_marks({**night, "rows": rows}) == [[(text, "") for text in row["cells"]] for row in rows]
    learning = cells_and_marks({**night, "rows": rows}, {"a": "still learning"})
    assert learning[0] == [("a", ""), ("1.0", ""), ("3.0", "still learning"), ("–", "")]
    assert learning[1] == [(text, "") for text in rows[1]["cells"]]
    few = cells_and_marks({**night, "rows": rows, "mark": "few images"}, {"a": "still learning"})
    assert [row[2] for row in few] == [("3.0", "still learning"), ("+2.0", "few images")]
    assert [row[3] for row in few] == [("–", "")] * 2


def test_a_table_of_which_every_training_diverged_says_so(tmp_path, monkeypatch):
    def diverges(*_):
        raise TrainingDivergedError("the loss is nan")

    monkeypatch.setattr("capsella.grid.grid.result_of", diverges)
    for row in tiny_table().trainings():
        row.folder(tmp_path, 0).mkdir()
    with pytest.raises(CapsellaError, match=r"diverged with some seed or all: .*; remove to train anew"):
        tiny_table().run(tmp_path, (0,), "c", QUIET)
