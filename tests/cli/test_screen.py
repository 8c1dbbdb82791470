"""Names are never cut: in a pipe, at 40 columns, and at 80."""

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.cli.chosen import recipe_groups
from capsella.cli.screen import console, list_entries, list_names, note_one_seed, show
from capsella.data import source_table
from capsella.models import list_models
from capsella.papers.published import FIGURES, OWN_TABLES, TABLES

RECIPE_NAMES = [name for names in recipe_groups().values() for name in names]
NAMES = {
    "train --help": RECIPE_NAMES,
    "recipes": RECIPE_NAMES,
    "models": list_models(),
    "table": [*TABLES, *OWN_TABLES],
    "figure": list(FIGURES),
    "data list": [row.name for row in source_table()],
}


@pytest.fixture(params=[40, 80, None], ids=["40", "80", "pipe"])
def width(request, monkeypatch):
    """Of the screen, or None in a pipe."""
    if request.param is None:
        monkeypatch.delenv("COLUMNS")
    else:
        monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


@pytest.mark.parametrize("words", NAMES)
def test_every_registered_name_is_shown_whole(cli, words, width):
    answer = cli(*words.split())
    assert answer.code == 0
    assert NAMES[words]
    assert [name for name in NAMES[words] if name not in answer.out.split()] == []
    assert "…" not in answer.out.replace("VALUE …", "").replace("0 1 …", "")


@pytest.mark.parametrize("words", NAMES)
def test_lists_are_as_wide_as_the_screen(cli, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    long = [line for line in cli(*words.split()).out.splitlines() if len(line) > 80]
    assert [line for line in long if len(line.split()) > 1] == []  # a single word stays whole


def test_a_table_keeps_its_words(width, capsys):
    table = Table("network", "what it is", "seconds")
    name = "hinton2018_matrix_capsnet_small_with_a_name_that_goes_on_and_on"
    for text in ("a sentence of many words, which may be broken", "another-word-that-is-as-long-as-a-network's-name"):
        table.add_row(Text(name), text, "1234.56")
    show(Group(Text("above"), table))
    out = capsys.readouterr().out
    assert out.startswith("above")
    assert out.count(name) == 2
    assert out.count("1234.56") == 2
    assert "another-word-that-is-as-long-as-a-network's-name" in out
    assert "…" not in out


def test_a_table_that_fits_is_no_wider_than_the_screen(width, capsys):
    table = Table("network", "what it is")
    table.add_row("hinton2018_cnn", "a sentence of many words, which is broken so that it stays within the screen")
    show(table)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= (width or 120)


def test_a_name_longer_than_the_screen_stays_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    name = "a-name-longer-than-the-screen"
    list_names({"group": ["short", name]})
    list_entries({"group": [(name, f"text with {name}")]})
    assert capsys.readouterr().out.split().count(name) == 3


def test_entries_are_no_markup(capsys):
    list_entries({"[red]": [("[bold]", "[/] and more")]})
    assert capsys.readouterr().out == "[red]\n  [bold]\n    [/] and more\n"


def test_a_pipe_has_a_width_of_its_own(width):
    assert console().width == (width or 120)


@pytest.mark.parametrize(("seeds", "noted"), [((0,), False), ((3,), True), ((3, 4), False)])
def test_a_seed_that_may_have_been_meant_as_a_number_of_seeds(seeds, noted, capsys):
    note_one_seed(seeds)
    assert ("one seed, number 3" in capsys.readouterr().err) == noted
