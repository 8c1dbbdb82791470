"""Names are never cut: in a pipe, at 40 columns, and at 80."""

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.cli.chosen import recipe_groups
from capsella.cli.screen import list_entries, list_names, show
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


def test_a_name_longer_than_the_screen_stays_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    name = "a-name-longer-than-the-screen"
    list_names({"group": ["short", name]})
    list_entries({"group": [(name, f"text with {name}")]})
    assert capsys.readouterr().out.split().count(name) == 3
