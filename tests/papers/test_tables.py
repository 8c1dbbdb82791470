"""Types of tables and figures, from their runs to JSON, on a few of scikit-learn's digits."""

import dataclasses
import json
import shutil

import pytest

from capsella.cli import main
from capsella.errors import ArgumentError, CapsellaError
from capsella.evaluation import AttackCurve, AttackOptions, AttackResult
from capsella.experiments import fit as runs
from capsella.papers import attack_table
from capsella.papers.attack_table import AttackTable
from capsella.papers.published import TABLES
from capsella.papers.table_types import (
    ErrorRow,
    ErrorTable,
    MatchedErrorTable,
    ReevaluatedRow,
    TestSet,
    caveated_cells,
    cells_with_caveats,
    error_cells,
)
from capsella.training import RunFolder, TrainingDivergedError
from capsella.training.registry import RECIPES
from tests.papers.tiny import CAPSNET, CNN, QUIET


def error_table(budget="small"):
    """A CNN that a paper has, and CapsNet, which it does not have; and the CNN tested again."""
    rows = (
        ErrorRow(slug="cnn", recipe_name="tiny", recipe=CNN, label=("digits", "CNN"), paper=9.7),
        ErrorRow(slug="caps", recipe_name="tiny", recipe=CAPSNET, label=("digits", "CapsNet")),
    )
    again = ReevaluatedRow("negative", "cnn", ("digits", "CNN, again"), lambda model: model, 1.4)
    return ErrorTable(title="A paper, Table 1", note="N.", columns=("data", "network"), rows=rows, reevaluated=(again,))


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(TABLES, "tiny", error_table)
    monkeypatch.setitem(RECIPES, "tiny", lambda: CNN)
    monkeypatch.setenv("COLUMNS", "160")


@pytest.mark.usefixtures("registered")
def test_an_error_table_from_the_command_line(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "mine"
    words = ["papers", "run", "tiny", "--seeds", "2", "--out", str(folder)]
    main(words)
    values = json.loads((folder / "mine.json").read_text())
    assert [row["cells"][:2] for row in values["rows"]] == [["digits", n] for n in ("CNN", "CNN, again", "CapsNet")]
    assert [row["paper_error_percent"] for row in values["rows"]] == [9.7, 1.4, None]
    assert values["command"] == "capsella papers run tiny --budget small --seeds 2"
    cnn, again, _ = values["rows"]
    for first, second in zip(cnn["runs"], again["runs"], strict=True):
        assert (first["training"], first["test"]["errors"]) == (second["training"], second["test"]["errors"])
    for row in values["rows"]:
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        assert {run["test"]["images"] for run in row["runs"]} == {20}
    out = capsys.readouterr().out
    for cells in caveated_cells(values):
        assert all(cell in out for cell in cells)
        assert cells[4] == "–"  # no gap of a short training to the paper

    monkeypatch.setattr(runs, "train", None)  # what is finished is read
    monkeypatch.setattr(runs, "evaluate", None)
    main(words)
    assert json.loads((folder / "mine.json").read_text()) == values


def test_error_cells_by_hand():
    def run(error, loss):
        best = {"train_loss": loss, "validation_loss": 2 * loss}
        return {"test": {"error_percent": error}, "training": {"best": best, "images_per_second": 100 * loss}}

    two = [run(4.0, 0.1), run(6.0, 0.3)]
    assert error_cells(1.8, two) == ["1.8", "5.00 ± 1.41", "+3.20", "0.2000", "0.4000", "20"]
    assert error_cells(None, two[:1]) == ["–", "4.00", "–", "0.1000", "0.2000", "10"]
    assert error_cells(0.25, two[:1], 0.005)[:3] == ["0.25 ± 0.005", "4.00", "+3.75"]


def test_a_table_of_which_every_training_diverged_is_refused(tmp_path, monkeypatch):
    def diverges(*_):
        raise TrainingDivergedError("the loss is nan")

    monkeypatch.setattr("capsella.experiments.runner.train_or_resume", diverges)
    for row in error_table().rows:
        row.folder(tmp_path, 0).mkdir()
    with pytest.raises(CapsellaError, match="cnn, caps"):
        error_table().run(tmp_path, (0,), "c", QUIET)


def test_rows_on_other_sources_have_no_published_number():
    table = error_table().on("mnist")
    assert [(row.recipe.data.name, row.label[0], row.paper) for row in table.rows] == [("mnist", "mnist", None)] * 2
    assert [row.paper for row in table.reevaluated] == [None]
    pairs = TABLES["sabour2017-1"]("small").on("fashion-mnist").rows
    assert {row.recipe.data.source for row in pairs} == {"fashion-mnist"}
    assert {row.label[0] for row in pairs} == {"fashion-mnist", "pairs of fashion-mnist"}
    others = TABLES["sabour2017-others"]("full").on("cifar10-jpeg,smallnorb-jpeg").rows
    assert [row.recipe.data.name for row in others] == ["cifar10-jpeg", "smallnorb-jpeg", "fashion-mnist"]
    assert [row.paper for row in others] == [10.6, 2.7, None]  # copies of the paper's images
    with pytest.raises(ArgumentError) as error:
        TABLES["sabour2017-others"]("full").on("kmnist")
    assert (error.value.argument, error.value.got) == ("data", "kmnist")


def test_a_state_replaces_the_tables_caveat_and_removes_the_gap():
    medium = {"heads": ["row", "paper %", "ours %", "gap"], "command": "capsella papers run x --budget full"}
    rows = [{"cells": ["a", "1.0", "3.0", "+2.0"], "slugs": ["a"]}, {"cells": ["a − b", "", "+2.0", "+1.0"]}]
    assert cells_with_caveats({**medium, "rows": rows}) == [[(text, "") for text in row["cells"]] for row in rows]
    learning = cells_with_caveats({**medium, "rows": rows}, {"a": "still learning"})
    assert learning[0] == [("a", ""), ("1.0", ""), ("3.0", "still learning"), ("–", "")]
    few = cells_with_caveats({**medium, "rows": rows, "caveat": "few images"}, {"a": "still learning"})
    assert [row[2] for row in few] == [("3.0", "still learning"), ("+2.0", "few images")]
    assert [row[3] for row in few] == [("–", "")] * 2


STOPPED = dataclasses.replace(CAPSNET, epochs=2, stop_at_error=100.0)
STOPPED_CNN = dataclasses.replace(CNN, epochs=2, stop_at_error=100.0)
FEWER = TestSet("less", "half of them", lambda data: dataclasses.replace(data, test_per_class=1))
ROWS = (
    ErrorRow(slug="capsnet", recipe_name="demo", recipe=STOPPED, label=("digits", "CapsNet"), paper=(1.0, 20.0)),
    ErrorRow(slug="cnn", recipe_name="demo", recipe=STOPPED_CNN, label=("digits", "CNN"), paper=(1.5, 30.0)),
)


SETS = (TestSet("test", "all"), FEWER)


def matched(sets=SETS):
    return MatchedErrorTable(title="A paper", note="N.", columns=("data", "network"), rows=ROWS, test_sets=sets)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Both networks with two seeds, the second one's with one."""
    folder = tmp_path_factory.mktemp("matched") / "mine"
    return folder, matched().run(folder, (0, 1), "c", QUIET)


def test_a_matched_error_table_from_its_runs(trained):
    folder, values = trained
    assert json.loads((folder / "mine.json").read_text()) == values
    capsnet, cnn, difference = values["rows"]
    assert (capsnet["cells"][2], cnn["cells"][2], difference["cells"][1]) == (
        *["epoch 1, epoch 1"] * 2,
        "CNN − CapsNet",
    )
    for row in (capsnet, cnn):
        assert [(run["test"]["images"], run["less"]["images"]) for run in row["runs"]] == [(20, 10)] * 2
    pairs = list(zip(capsnet["runs"], cnn["runs"], strict=True))
    by_seed = {key: [b[key]["error_percent"] - a[key]["error_percent"] for a, b in pairs] for key in ("test", "less")}
    assert difference["by_seed"] == by_seed
    assert [difference["cells"][at] for at in (3, 5)] == ["+0.50", "+10.00"]
    assert difference["cells"][-1] == f"{sum(by_seed['less']) / 2 - 10:+.1f}"
    ours = [run["less"]["error_percent"] for run in cnn["runs"]]
    assert cnn["cells"][-1] == f"{sum(ours) / 2 - 30:+.1f}"


def test_networks_that_did_not_reach_the_error_are_not_compared(trained):
    folder, values = trained
    results = {row.slug: made["runs"] for row, made in zip(ROWS, values["rows"], strict=False)}
    late = [dict(run, training=dict(run["training"], stopped={"reached": False})) for run in results["cnn"]]
    rows = matched().build(results | {"cnn": late}, folder, "c", QUIET)["rows"]
    assert [row["cells"][2] for row in rows[1:]] == ["not reached, not reached", "not all: not compared"]
    assert [row["cells"][-1] == "–" for row in rows] == [False, True, True]


def test_a_diverged_seed_is_left_out_of_its_row_and_difference_alone(tmp_path, trained):
    _, values = trained
    results = {row.slug: made["runs"] for row, made in zip(ROWS, values["rows"], strict=False)}
    for folder, left in ((tmp_path / "one", results["cnn"][1:]), (tmp_path / "all", [])):
        for seed in range(2 - len(left)):
            RunFolder(folder / f"cnn-seed{seed}").write("diverged", {"reason": "the loss is nan"})
        shutil.copytree(trained[0], folder, dirs_exist_ok=True)
        made = matched().build(results | {"cnn": left}, folder, "c", QUIET)
        capsnet, cnn, difference = made["rows"]
        assert capsnet == values["rows"][0]
        assert made["measured"].endswith(f"Diverged: {'cnn-seed0' if left else 'cnn-seed0, cnn-seed1'}.")
        if left:
            assert cnn["runs"] == values["rows"][1]["runs"][1:]
            assert difference["by_seed"] == {key: of[1:] for key, of in values["rows"][2]["by_seed"].items()}
            assert cnn["cells"][4].endswith(" (1 seed diverged)")
        else:
            assert cnn["cells"][2:] == ["–", "1.5", "diverged", "30", "diverged", "–"]
            assert difference["cells"][2:] == ["not run", "+0.50", "not run", "+10.00", "not run", "–"]


def test_numbers_of_another_stop_or_on_a_stand_in_have_a_caveat_and_no_gap(trained):
    folder, values = trained
    results = {row.slug: made["runs"] for row, made in zip(ROWS, values["rows"], strict=False)}
    stopped = dataclasses.replace(matched(), stop_caveat="at 60 %")
    for row in stopped.build(results, folder, "c", QUIET)["rows"]:
        assert all(row["cells"][at].endswith(" (at 60 %)") for at in (4, 6))
        assert row["cells"][7] == "–"
    sets = (TestSet("test", "all"), dataclasses.replace(FEWER, caveat=" (stand-in)"))
    for row in matched(sets=sets).build(results, folder, "c", QUIET)["rows"]:
        assert [row["cells"][at].endswith(" (stand-in)") for at in (4, 6)] == [False, True]
        assert row["cells"][7] == "–"
    affnist = TABLES["sabour2017-affnist"]("small")
    assert [[on.caveat for on in affnist.on(source).test_sets] for source in ("affnist", "affnist-like")] == [
        ["", ""],
        ["", " (stand-in)"],
    ]


def test_matched_tables_take_the_papers_images_or_stand_ins():
    viewpoints = TABLES["hinton2018-viewpoints"]("medium")
    like = viewpoints.on("smallnorb-jpeg-poses")
    assert [(row.slug, row.recipe.stop_at_error, row.paper) for row in like.rows] == [
        ("elevation", 7.0, (4.3, 12.3)),
        ("elevation-cnn", 7.0, (4.3, 17.8)),
    ]
    assert (viewpoints.caveat, like.caveat) == ("", "at 7 %")
    for name in ("hinton2018-viewpoints", "sabour2017-affnist"):
        with pytest.raises(ArgumentError) as error:
            TABLES[name]("small").on("fashion-mnist")
        assert error.value.argument == "data"


OPTIONS = AttackOptions(epsilons=(0.1, 0.5), steps=1, restarts=1)


def attacks(options=OPTIONS):
    rows = tuple(
        ErrorRow(slug=name, recipe_name="demo", recipe=dataclasses.replace(recipe, stop_at_error=0.0), label=(name,))
        for name, recipe in (("caps", CAPSNET), ("cnn", CNN))
    )
    return AttackTable(title="A paper", columns=("attack", "ε"), rows=rows, options=options, requires_common_seeds=True)


def test_an_attack_table_from_its_runs(tmp_path, monkeypatch):
    def network(clean, at_full_reach, *curves):
        return AttackResult(clean, at_full_reach, 0.0, 0, tuple(AttackCurve(*curve) for curve in curves))

    def attack(models, images, options, progress):
        assert (sorted(models), len(images)) == (["caps", "cnn"], 20)
        more = 10.0 * options.seed
        caps = network(80.0 + more, 0.0, ("FGSM", None, (60.0, 20.0)), ("vote", None, (50.0, 10.0)))
        cnn = network(70.0, 0.3 * more, ("FGSM", None, (40.0, 0.0)), ("transfer", "caps", (66.0, 44.0)))
        return {"caps": caps, "cnn": cnn}

    folder = tmp_path / "mine"
    monkeypatch.setattr(attack_table, "attack_networks", attack)
    values = attacks().run(folder, (0, 1), "c", QUIET)
    assert json.loads((folder / "mine.json").read_text()) == values
    assert [row["cells"] for row in values["rows"]] == [
        ["none", "0", "85.00 ± 7.07", "70.00 ± 0.00"],
        ["FGSM", "0.1", "60.00 ± 0.00", "40.00 ± 0.00"],
        ["FGSM", "0.5", "20.00 ± 0.00", "0.00 ± 0.00"],
        ["vote", "0.1", "50.00 ± 0.00", "–"],
        ["vote", "0.5", "10.00 ± 0.00", "–"],
        ["transfer from caps", "0.1", "–", "66.00 ± 0.00"],
        ["transfer from caps", "0.5", "–", "44.00 ± 0.00"],
        ["PGD, check for masked gradients", "1", "0.00 ± 0.00", "1.50 ± 2.12"],
    ]
    assert "Masked gradients: cnn." in values["measured"]
    assert caveated_cells({**values, "command": "capsella papers run x --budget small"})[3][2] == "50.00 ± 0.00 (short)"
    monkeypatch.setattr(attack_table, "attack_networks", None)  # what is finished is read
    assert attacks().run(folder, (0, 1), "c", QUIET) == values
    with pytest.raises(TypeError):  # other attacks are made anew
        attacks(dataclasses.replace(OPTIONS, steps=2)).run(folder, (0,), "", QUIET)
    result = json.loads((folder / "cnn-seed1" / "result.json").read_text())
    result["test"]["correct"] = "another training's"
    (folder / "cnn-seed1" / "result.json").write_text(json.dumps(result))
    with pytest.raises(TypeError):  # of other networks
        attacks().run(folder, (0, 1), "", QUIET)
