"""`capsella data`, `list`, `info` and `papers list`."""

from PIL import Image
from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.cli.screen import console, list_entries, show
from capsella.data import source_table
from capsella.environment import environment
from capsella.models import list_models
from capsella.papers import get_recipe, list_recipes
from capsella.papers.published import FIGURES, OWN_TABLES, TABLES

NAMES = {
    "list recipes": list_recipes(),
    "list models": list_models(),
    "list data": [row.name for row in source_table()],
    "papers list": [*TABLES, *OWN_TABLES, *FIGURES],
}


def test_a_table_keeps_its_words_on_a_narrow_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    table, name = Table("network", "what it is", "seconds"), "hinton2018_matrix_capsnet_small_with_a_long_name"
    table.add_row(Text(name), "a sentence of many words, which may be broken", "1234.56")
    show(Group(Text("above"), table))
    list_entries({"[red]": [(name, "[/] and more")]})
    out = capsys.readouterr().out
    assert out.startswith("above")
    assert (out.count(name), out.count("1234.56"), "…" in out) == (2, 1, False)
    assert out.endswith(f"[red]\n  {name}\n    [/] and more\n")
    monkeypatch.delenv("COLUMNS")
    assert console().width == 120  # a pipe has no width


def test_a_full_name_shows_one(cli):
    recipe, out = get_recipe("demo"), cli("list", "recipes", "demo").out
    assert f"  epochs = {recipe.epochs}\n" in out
    assert "  model.routing.iterations = 3\n" in out
    one = cli("list", "models", "sabour2017_capsnet").out
    assert "8,215,568 parameters" in one
    assert "primary_relu=False" in one
    assert "sabour2017_capsnet" not in cli("list", "models", "hinton*").out


def test_info_names_versions_and_the_backend(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    monkeypatch.setattr("capsella.training.resolve.measure_ratio", lambda: 1.9)
    monkeypatch.setattr("capsella.training.resolve.MEMORY", tmp_path / "precision.json")
    answer = cli("info")
    assert answer.code == 0
    for text in (environment()["torch"], str(tmp_path), "eager", "auto → bf16-mixed"):
        assert text in answer.out


def test_show_counts_and_draws(cli, copied, tmp_path, monkeypatch):
    images, _ = copied
    monkeypatch.chdir(tmp_path)
    odd = images / "rows" / "[red]odd.png"
    odd.write_bytes(b"no image")
    answer = cli("data", "show", images, "--skip-broken")
    assert answer.code == 0, answer.err
    assert "my images: 17×17×1" in answer.out
    assert str(odd) in answer.out
    with Image.open(tmp_path / "my images-sheet.png") as sheet:
        assert sheet.size[1] > 3 * 17


def test_split_writes_a_file_that_training_reads(cli, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("data", "split", images, "--per-class", 3, "--split-seed", 4)
    assert cli(*words).code == 0
    out = tmp_path / "my images-split.csv"
    assert out.read_text().count(",train\n") == 9
    shown = cli("data", "show", images, "--split-file", out, "--out", tmp_path / "s.png").out
    assert next(line.split() for line in shown.splitlines() if "rings" in line)[3] == "3"
    again = cli(*words)
    assert (again.code, "--out" in again.err) == (1, True)
