"""Stained cells from the command line: a recipe that cuts them out, and what becomes of new files."""

import numpy as np
import pytest
from PIL import Image

from capsella.models import ImageClassifier

QUICK = (
    "--epochs",
    "1",
    "--size",
    "32",
    "--data.test",
    "0.3",
    "--data.validation",
    "0.3",
    "--batch-size",
    "8",
    "--duplicates",
    "ignore",
)


def save_cell(file, size, lobes):
    """A cell with a nucleus of one or two lobes, among red cells; shape and place are drawn, with `size` the seed."""
    random = np.random.default_rng(size)
    rows, columns = np.mgrid[:size, :size] / size
    away = np.hypot(rows - random.uniform(0.35, 0.65), columns - random.uniform(0.35, 0.65))
    pixels = np.tile(np.array([250, 245, 235], np.uint8), (size, size, 1))
    for row, column in random.uniform(0, 1, (6, 2)):
        pixels[np.hypot(rows - row, columns - column) < 0.1] = (230, 150, 140)
    pixels[away < 0.25] = (225, 190, 200)
    middle, turn = np.unravel_index(away.argmin(), away.shape), random.uniform(0, np.pi)
    for side in (-1, 1):
        row, column = middle + side * size * random.uniform(0.06, 0.1) * np.array([np.sin(turn), np.cos(turn)])
        lobe = np.hypot(rows - row / size, columns - column / size)
        pixels[lobe < (0.06 if lobes == 2 else 0.12) * random.uniform(0.9, 1.2)] = (80, 40, 160)
    Image.fromarray(pixels).save(file)


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stained")
    for lobes, name in ((1, "round"), (2, "lobed")):
        (folder / name).mkdir()
        for k in range(8):
            save_cell(folder / name / f"{k}.png", 70 + 9 * k, lobes)
    return folder


def test_a_run_on_stained_cells(cli, cells, tmp_path):
    answer = cli("train", "images-cells-efficient", cells, *QUICK, "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert "changed as other microscopes, stains and cameras would" in answer.out
    assert '"cells": "matched"' in (tmp_path / "run" / "config.json").read_text()
    model = ImageClassifier.from_pretrained(tmp_path / "run")
    assert model.cut is not None
    assert model.cut.matched
    assert model.cut.radius > 5
    Image.fromarray(np.full((50, 50, 3), 240, np.uint8)).save(tmp_path / "empty.png")
    save_cell(tmp_path / "new.png", 200, 2)
    table = tmp_path / "new.csv"
    answer = cli("predict", tmp_path / "run", tmp_path / "new.png", tmp_path / "empty.png", "--out", table)
    assert answer.code == 0, answer.err
    assert "no stained cell is found" in table.read_text().splitlines()[2]
    assert "1 stained cell: too few" in answer.err
    scaled = cli("predict", tmp_path / "run", tmp_path / "new.png", "--cell-radius", "40")
    assert scaled.code == 0
    assert "too few" not in scaled.err
    many = tmp_path / "many"
    many.mkdir()
    for k in range(24):
        save_cell(many / f"{k}.png", 120 + k, 1)
    assert "scale" not in cli("predict", tmp_path / "run", many).err
    drawn = {
        radius: cli("explain", tmp_path / "run", tmp_path / "new.png", "--out", tmp_path / radius, *flag)
        for radius, flag in (("own", ()), ("forty", ("--cell-radius", "40")), ("twenty", ("--cell-radius", "20")))
    }
    assert {name: "too few for a scale" in answer.err for name, answer in drawn.items()} == {
        "own": True,
        "forty": False,
        "twenty": False,
    }
    pictures = [(tmp_path / name / "new_explained.png").read_bytes() for name in ("forty", "twenty")]
    assert pictures[0] != pictures[1]


@pytest.mark.slow
def test_transfer_cuts_cells_where_the_recipe_does(cli, cells, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.compare.laboratories.CHOSEN_ON", 16)
    other = tmp_path / "other"
    for lobes, name in ((1, "round"), (2, "lobed")):
        (other / name).mkdir(parents=True)
        for k in range(8):
            save_cell(other / name / f"{k}.png", 200 + 9 * k, lobes)
    recipes = ("images-efficient", "images-cells-efficient")
    quick = ("--epochs", "1", "--size", "32", "--seeds", "1", "--out", tmp_path / "runs")
    answer = cli("transfer", cells, other, "--recipes", *recipes, *quick)
    assert answer.code == 0, answer.err
    found = {
        ImageClassifier.from_pretrained(file.parent).cut is None: file.parent.parent.name
        for file in (tmp_path / "runs").rglob("model.json")
    }
    assert set(found) == {True, False}
    lines = (tmp_path / "runs" / "transfer.txt").read_text().splitlines()
    assert sum("images-cells-efficient" in line for line in lines) == 2  # each laboratory is left out once
    assert max(map(len, lines)) <= 80
