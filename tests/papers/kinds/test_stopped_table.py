"""Networks stopped at one error and tested under a change: on scikit-learn's digits, in seconds."""

import dataclasses
import json

import pytest

from capsella.errors import CapsellaError
from capsella.grid import Grid
from capsella.grid import run as runs
from capsella.papers.kinds import stopped_table
from capsella.papers.kinds.stopped_table import ErrorOn, StoppedRow, StoppedTable
from capsella.papers.sabour2017.tables import affnist
from tests.papers import tiny
from tests.papers.tiny import QUIET

TINY = dataclasses.replace(tiny.CAPSNET, epochs=2, stop_at_error=100.0)
CNN = dataclasses.replace(tiny.CNN, epochs=2, stop_at_error=100.0)
LESS = ErrorOn("less", "half of them", lambda data: dataclasses.replace(data, test_per_class=1))
ROWS = (
    StoppedRow(slug="capsnet", recipe_name="demo", recipe=TINY, label=("digits", "CapsNet"), paper=(1.0, 20.0)),
    StoppedRow(slug="cnn", recipe_name="demo", recipe=CNN, label=("digits", "CNN"), paper=(1.5, 30.0)),
)


def tiny_table(*, own_first=True, rows=ROWS):
    errors_on = (ErrorOn("test", "all"), LESS) if own_first else (LESS, ErrorOn("test", "all"))
    return StoppedTable("A paper", "A note.", ("data", "network"), rows, errors_on)


@pytest.mark.parametrize("own_first", [True, False])
def test_a_table_from_its_runs(own_first, tmp_path, monkeypatch):
    table, folder = tiny_table(own_first=own_first), tmp_path / "mine"
    values = table.run(folder, (0, 1), "capsella table …", QUIET)
    assert json.loads((folder / "mine.json").read_text()) == values
    heads = ("all", "half of them") if own_first else ("half of them", "all")
    assert values["heads"][2:] == [
        "stopped", *(f"{head}, {whose} %" for head in heads for whose in ("paper", "ours")), "gap",
    ]  # fmt: skip
    capsnet, cnn, difference = values["rows"]
    assert (capsnet["cells"][2], cnn["cells"][2]) == ("epoch 1, epoch 1", "epoch 1, epoch 1")
    assert (capsnet["cells"][:2], difference["cells"][:2]) == (["digits", "CapsNet"], ["digits", "CNN − CapsNet"])
    for row in (capsnet, cnn):
        for run in row["runs"]:
            assert (run["test"]["images"], run["less"]["images"]) == (20, 10)
            assert run["less"]["data"] == "digits"
    keys = ("test", "less") if own_first else ("less", "test")
    by_seed = {
        key: [
            theirs[key]["error_percent"] - ours[key]["error_percent"]
            for ours, theirs in zip(capsnet["runs"], cnn["runs"], strict=True)
        ]
        for key in keys
    }
    assert difference["by_seed"] == by_seed
    assert difference["paper"] == dict(zip(keys, (0.5, 10.0), strict=True))
    assert difference["cells"][-1] == f"{sum(by_seed[keys[1]]) / 2 - 10:+.1f}"
    ours = [run[keys[1]]["error_percent"] for run in cnn["runs"]]
    assert cnn["cells"][-1] == f"{sum(ours) / 2 - 30:+.1f}"
    for head, images in zip(heads, (20, 10) if own_first else (10, 20), strict=True):
        assert f"{head.capitalize()}: digits, {images} images" in values["measured"]
    monkeypatch.setattr(runs, "evaluate", None)  # what is finished is read
    assert table.run(folder, (0, 1), "capsella table …", QUIET) == values


def test_what_was_not_stopped_is_not_compared(tmp_path):
    late = dataclasses.replace(ROWS[1], recipe=dataclasses.replace(CNN, stop_at_error=0.0))
    values = tiny_table(rows=(ROWS[0], late)).run(tmp_path, (0,), "capsella table …", QUIET)
    capsnet, cnn, difference = (row["cells"][2:] for row in values["rows"])
    assert (capsnet[0], cnn[0]) == ("epoch 1", "not reached")
    assert capsnet[-1] != "–"
    assert cnn[-1] == "–"  # no gap to networks that were stopped
    assert difference == ["not all: not compared", "+0.50", "–", "+10.00", "–", "–"]


def test_rows_that_a_source_cannot_make(monkeypatch):
    impossible = {"wine": "Wine has no digits."}
    rows = (*ROWS, *(dataclasses.replace(row, slug=f"{row.slug}2", impossible=impossible) for row in ROWS))
    table = tiny_table(rows=rows)
    assert [row.slug for row in table.on("wine").rows] == ["capsnet", "cnn"]
    assert table.on("wine").note == "A note. Wine has no digits."
    assert [row.recipe.data.name for row in table.on("mnist").rows] == ["mnist"] * 4
    assert table.on("mnist").note == "A note."
    assert {row.paper for row in table.on("mnist").rows} == {None}
    monkeypatch.setitem(stopped_table.LIKE, "digits", ("digits-again",))
    assert [row.paper for row in table.on("digits-again").rows] == [(1.0, 20.0), (1.5, 30.0)] * 2


def test_rows_that_stop_elsewhere_on_a_source():
    table = tiny_table(rows=tuple(dataclasses.replace(row, stops={"wine": 7.0}) for row in ROWS))
    assert [row.recipe.stop_at_error for row in table.on("wine").rows] == [7.0, 7.0]
    assert table.on("wine").note == "A note. On wine they stop at 7 % instead."
    assert [row.recipe.stop_at_error for row in table.on("mnist").rows] == [row.recipe.stop_at_error for row in ROWS]


def test_numbers_of_another_stop_say_so_and_have_no_gap(tmp_path):
    rows = tuple(dataclasses.replace(row, other_stop=60.0) for row in ROWS)
    values = tiny_table(rows=rows).run(tmp_path, (0,), "capsella table …", QUIET)
    for row in values["rows"]:
        assert all(row["cells"][at].endswith(" (at 60 %)") for at in (4, 6))
        assert row["cells"][3] != "–"
        assert row["cells"][7] == "–"
    table = tiny_table(rows=tuple(dataclasses.replace(row, stops={"wine": 7.0}) for row in ROWS))
    assert [row.other_stop for row in table.on("wine").rows] == [7.0, 7.0]
    assert [row.other_stop for row in table.on("mnist").rows] == [None, None]


def test_images_of_another_name_have_no_published_errors(tmp_path):
    rows = [dataclasses.replace(row, paper=None) for row in ROWS]
    values = tiny_table(rows=tuple(rows)).run(tmp_path, (0,), "capsella table …", QUIET)
    for row in values["rows"]:
        assert (row["paper"], row["cells"][3], row["cells"][5], row["cells"][7]) == (None, "–", "–", "–")


@pytest.mark.parametrize("rows", [(), ROWS[:1]])
def test_rows_come_by_twos(rows):
    with pytest.raises(ValueError, match=r"rows: must come by twos, to be compared, got \[.*\]"):
        tiny_table(rows=rows)


def far_table(source):
    """As affNIST, on which nothing is trained: `--data` names the changed set alone."""
    errors_on = (ErrorOn("test", "plain"), ErrorOn("far", "far", source="far"))
    return dataclasses.replace(tiny_table(), errors_on=errors_on).on(source)


def test_a_changed_set_of_another_source_is_what_a_table_on_other_data_replaces(tmp_path):
    table = far_table("digits")
    assert {row.recipe.data for row in table.rows} == {TINY.data}
    values = table.run(tmp_path, (0,), "capsella table …", QUIET)
    for row in values["rows"][:2]:
        (run,) = row["runs"]
        assert run["digits"]["error_percent"] == run["test"]["error_percent"]
        assert run["digits"]["data"] == "digits"
    # In the same folder, what was measured on digits is not taken for another source's.
    with pytest.raises(ValueError, match="name: must be a registered name"):
        far_table("nowhere").run(tmp_path, (0,), "capsella table …", QUIET)


def test_a_wrong_changed_set_is_found_before_the_first_training(tmp_path):
    with pytest.raises(ValueError, match="name: must be a registered name"):
        far_table("nowhere").run(tmp_path, (0,), "capsella table …", QUIET)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": lambda data: data, "source": "x"}, "source: must be left out where `data` is given"),
        ({"source": "y"}, "key: must be the source 'y' where there is one, got 'x'"),
    ],
)
def test_a_set_has_one_description(options, message):
    with pytest.raises(ValueError, match=message):
        ErrorOn("x", "far", **options)


def test_rows_of_different_seeds_are_compared_by_those_they_share(tmp_path):
    table = tiny_table()
    folder = tmp_path / "some"
    results = Grid(folder, QUIET).results([ROWS[0]], (0, 1)) | Grid(folder, QUIET).results([ROWS[1]], (1,))
    values = table.made_of(results, folder, "c", QUIET)
    capsnet, (cnn,) = results["capsnet"][1], results["cnn"]
    apart = [cnn["test"]["error_percent"] - capsnet["test"]["error_percent"]]
    assert values["rows"][2]["by_seed"]["test"] == apart
    assert "1 to 2 seeds a row" in values["measured"]
    alone = table.made_of({"capsnet": results["capsnet"]}, folder, "c", QUIET)["rows"]
    assert [row["cells"][2] for row in alone[1:]] == ["–", "not run"]
    assert alone[1]["cells"][4] == "not run"
    assert [data.test_per_class for data in table.images()] == [2, 1, 2, 1]


def test_numbers_on_a_stand_in_say_so_and_have_no_gap(tmp_path):
    """Published errors stand beside them, and are of other images."""
    table = affnist("small")
    assert [on.mark for on in table.on("affnist").errors_on] == ["", ""]
    assert [on.mark for on in table.on("affnist-like").errors_on] == ["", " (stand-in)"]
    table = dataclasses.replace(
        tiny_table(), errors_on=(ErrorOn("test", "all"), dataclasses.replace(LESS, mark=" (stand-in)"))
    )
    for row in table.run(tmp_path, (0,), "capsella table …", QUIET)["rows"]:
        assert not row["cells"][4].endswith(")")
        assert row["cells"][6].endswith(" (stand-in)")
        assert row["cells"][7] == "–"


def test_a_night_of_affnist_stops_at_another_error_than_the_paper():
    assert [row.bracket for row in affnist("night").rows] == [" (at 1 %)"] * 2
    assert affnist("night").mark_of("cnn") == "at 1 %"
    assert [row.bracket for row in affnist("full").rows] == ["", ""]


def test_a_changed_set_of_other_classes_is_found_before_the_first_training(tmp_path):
    with pytest.raises(CapsellaError, match="data: toys must have the classes, channels and size of digits, "):
        far_table("toys").run(tmp_path, (0,), "capsella table …", QUIET)
    assert list(tmp_path.iterdir()) == []
