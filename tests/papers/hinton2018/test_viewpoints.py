"""§5.1, novel viewpoints: the paper's numbers and protocol, and a table from its runs on a few rendered toys."""

import dataclasses
import json

import pytest
import torch
from rich.console import Console

from capsella.data import load_data, toys
from capsella.data.viewpoints import is_familiar
from capsella.papers import get_recipe
from capsella.papers.hinton2018 import viewpoints as hinton2018_viewpoints
from capsella.papers.hinton2018.viewpoints import viewpoints
from capsella.papers.published import TABLES

QUIET = Console(quiet=True)
# Familiar and novel errors in per cent (section 5.1).
PAPER = {
    ("azimuth", "capsules"): (3.7, 13.5),
    ("azimuth", "CNN"): (3.7, 20.0),
    ("elevation", "capsules"): (4.3, 12.3),
    ("elevation", "CNN"): (4.3, 17.8),
}


@pytest.mark.parametrize("budget", ["small", "night", "full"])
def test_the_rows_are_the_papers(budget):
    table = viewpoints(budget)
    assert {row.label: row.paper for row in table.rows} == PAPER
    for row in table.rows:
        data = row.recipe.data
        assert (data.viewpoints, data.test_viewpoints, row.recipe.stop_on) == (row.label[0], "familiar", "test")
        assert ("routing" in row.recipe.model.options) == (row.label[1] == "capsules")
        assert row.recipe.stop_at_error == (15.0 if budget == "small" else row.paper[0])
        assert row.recipe == get_recipe(row.recipe_name) or budget != "full"
        familiar, novel = table.errors_on
        assert familiar.data is None
        assert novel.data(data) == dataclasses.replace(data, test_viewpoints="novel")
    for one, other in zip(table.rows[::2], table.rows[1::2], strict=True):
        assert one.recipe.data == other.recipe.data
        assert one.recipe.epoch_images == other.recipe.epoch_images
    assert TABLES["hinton2018-viewpoints"] is viewpoints


def test_the_jpeg_copy_has_elevations_alone():
    table = viewpoints("small").on("smallnorb-jpeg-poses")
    assert [row.slug for row in table.rows] == ["elevation", "elevation-cnn"]
    assert "No azimuth rows: the JPEG copy counts each toy's azimuths from a first view of its own." in table.note
    assert "No azimuth rows" not in viewpoints("small").on("toys").note
    assert {row.recipe.stop_at_error for row in viewpoints("night").rows} == {3.7, 4.3}
    assert {row.recipe.stop_at_error for row in viewpoints("night").on("smallnorb-jpeg-poses").rows} == {7.0}


@pytest.fixture
def few_toys(monkeypatch):
    """Two elevations and azimuths of each kind, one light, at 20×20: familiar ones first."""
    usual = toys.render_toys

    def render(instances):
        images = usual(instances[:2], (30, 40, 50, 70), (0, 20, 60, 200), size=20)
        return images.subset((images.metadata["lighting"] == 0).nonzero().flatten())

    monkeypatch.setattr(toys, "render_toys", render)


def tiny(row):
    data = dataclasses.replace(row.recipe.data, size=20, validation_per_class=2, test_per_class=4)
    recipe = dataclasses.replace(
        row.recipe.with_model(crop=None), data=data, epochs=1, epoch_images=32, stop_at_error=100.0
    )
    return dataclasses.replace(row, recipe=recipe)


@pytest.mark.usefixtures("few_toys")
def test_a_table_from_its_runs(tmp_path, monkeypatch):
    published, table = viewpoints("small"), viewpoints("small").on("toys")
    assert {row.paper for row in table.rows} == {None}  # the paper has no such toys
    rows = [
        dataclasses.replace(tiny(row), paper=one.paper) for row, one in zip(table.rows, published.rows, strict=True)
    ]
    table = dataclasses.replace(table, rows=tuple(rows))
    values = table.run(tmp_path, (0,), "capsella table …", QUIET)
    assert json.loads(table.path(tmp_path).read_text()) == values
    cells = [row["cells"][:2] for row in values["rows"]]
    assert [*cells[2], *cells[5]] == ["azimuth", "CNN − capsules", "elevation", "CNN − capsules"]
    assert values["rows"][2]["paper"] == {"test": 0.0, "novel": 6.5}
    assert values["rows"][5]["paper"] == pytest.approx({"test": 0.0, "novel": 5.5})
    for row in (row for row in values["rows"] if "runs" in row):
        (run,) = row["runs"]
        assert (run["test"]["images"], run["novel"]["images"]) == (20, 20)
        assert run["training"]["stopped"]["on"] == "test"
    monkeypatch.setattr(hinton2018_viewpoints, "get_recipe", None)
    assert table.run(tmp_path, (0,), "capsella table …", QUIET) == values


@pytest.mark.usefixtures("few_toys")
def test_familiar_and_novel_views_are_of_the_same_toys():
    for row in viewpoints("small").on("toys").rows[::2]:
        recipe, by = tiny(row).recipe, row.label[0]
        _, novel = viewpoints("small").errors_on
        splits, others = load_data(recipe.data), load_data(novel.data(recipe.data))
        assert bool(is_familiar(splits.train, by).all())
        assert bool(is_familiar(splits.test, by).all())
        assert not bool(is_familiar(others.test, by).any())
        assert torch.equal(splits.train.images, others.train.images)
        toys_of = [set(images.metadata["instance"].tolist()) for images in (splits.train, splits.test, others.test)]
        assert toys_of[1] == toys_of[2]
        assert not toys_of[0] & toys_of[1]
