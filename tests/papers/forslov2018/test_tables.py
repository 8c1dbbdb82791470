"""The thesis's tables, from the command line to their JSON, on tiny images and budgets."""

import dataclasses
import json
import re

import pytest
from rich.console import Console

from capsella.cli import main
from capsella.data import load_data
from capsella.errors import CapsellaError
from capsella.evaluation import PERTURBATIONS
from capsella.grid import Grid
from capsella.grid import run as training
from capsella.papers import get_recipe
from capsella.papers.forslov2018 import paper, runs, table5
from capsella.papers.forslov2018 import table4 as changed_images
from capsella.papers.forslov2018.base import accuracies_of
from capsella.papers.forslov2018.figures_31_32 import figure_31
from capsella.papers.forslov2018.figures_33_34_37 import figure_33
from capsella.papers.forslov2018.supply import find_supply
from capsella.papers.forslov2018.table2 import table_2
from capsella.papers.forslov2018.table3 import table_3
from capsella.papers.forslov2018.table4 import table_4
from capsella.papers.forslov2018.table5 import table_5
from capsella.papers.kinds.published import marked_cells
from capsella.papers.published import TABLES
from capsella.training import Recipe

QUIET = Console(quiet=True)


class TestTheGrid:
    def test_small(self):
        grid = runs.ThesisRuns("small", "pbc").grid(("mini", "small", "basic"))
        images = runs.SMALL.epochs * runs.SMALL.epoch_images
        assert len(grid) == len({run.slug for run in grid}) == 21
        assert [run.slug for run in grid[:2]] == ["mini-capsnet1-init1", "mini-capsnet2-init1"]
        for run in grid:
            recipe, usual = run.recipe, get_recipe(run.recipe_name)
            assert recipe.epochs * recipe.epoch_images == images
            assert recipe.batch_size == runs.SMALL.batch_size
            assert not recipe.model.options.get("reconstruction", False)
            assert run.recipe_name.endswith("-init1-modern")
            assert (recipe.model, recipe.augment, recipe.loss) == (usual.model, usual.augment, usual.loss)
            assert (recipe.data.name, recipe.data.size, recipe.data.channels) == ("pbc", 224, 3)
            assert recipe.loss.spread_at(images, images) == pytest.approx(0.9)
            rate = recipe.optimizer.learning_rate
            steps = images // runs.SMALL.batch_size
            assert recipe.optimizer.rate_at(steps, steps) == pytest.approx(rate / 10)
        assert [run.recipe.data.per_class for run in grid[::7]] == [100, 300, None]
        assert [run.recipe.data.first_classes for run in grid[::7]] == [None, None, 5]

    def test_full_is_as_long_as_the_thesis(self):
        grid = runs.ThesisRuns("full").grid(paper.SETS)
        assert len(grid) == 7 * 2 * 6
        for run in grid:
            recipe, usual = run.recipe, get_recipe(run.recipe_name)
            steps = recipe.epochs * recipe.epoch_images // recipe.batch_size
            longer = run.slug.startswith("hard") and "capsnet" not in run.slug
            assert (recipe.batch_size, steps) == (5, 200_000 if longer else 100_000)
            assert (recipe.model, recipe.loss, recipe.optimizer) == (usual.model, usual.loss, usual.optimizer)
            assert recipe.data.name == "bloodmnist"

    def test_a_set_of_the_first_classes(self, tiny):
        assert load_data(runs.ThesisRuns("small", tiny).options("classes3")).classes == ("a", "b", "c")


class TestSupply:
    def supply(self, wanted=paper.SETS, **options):
        return find_supply(dataclasses.replace(runs.ThesisRuns("full", "tiny").options("hard"), **options), wanted)

    def test_what_is_there_and_why_the_rest_is_not(self, tiny):
        supply = self.supply()
        assert supply.counts == {"mini": 500, "basic": 510}
        assert supply.reasons == {
            "small": "0 of the 5 classes of tiny have 300 training images, not half",
            "medium-size": "0 of the 5 classes of tiny have 900 training images, not half",
            "medium": "it has 10 classes, tiny has 5",
            "hard": "all 5 classes of tiny are basic already",
        }
        assert "Left out medium: it has 10 classes, tiny has 5." in supply.sentences()

    def test_the_counts_are_those_of_the_data(self, tiny):
        grid = runs.ThesisRuns("full", tiny)
        for name, count in self.supply().counts.items():
            assert len(load_data(grid.options(name)).train) == count

    def test_none(self, tiny):
        with pytest.raises(CapsellaError, match="tiny has none of the thesis's sets small, medium: small: 0 of the 5"):
            self.supply(("small", "medium"))


def test_table_3_from_the_command_line(tiny, tmp_path, monkeypatch, capsys):
    words = ["table", "forslov2018-table3", "--data", tiny, "--out", str(tmp_path)]
    main(words)
    out = capsys.readouterr().out
    values = json.loads((tmp_path / "forslov2018-table3-small-tiny.json").read_text())
    assert values["heads"] == ["network", "INIT-NET", "mini paper", "mini ours", "basic paper", "basic ours"]
    assert [row["network"] for row in values["rows"]] == ["emnet1", "cnnnet1"]
    assert re.search(r"run 4 of 4: basic-cnnnet1-init1, seed 0; about \d+ s left", out)
    assert "4 images seen in batches of 2" in values["note"]
    for row in values["rows"]:
        for name, found in row["sets"].items():
            (run,) = found["runs"]
            assert found["paper_accuracy"] == paper.ACCURACY[row["network"], 1][paper.SETS.index(name)]
            assert found["accuracy"] == pytest.approx(1 - run["test"]["errors"] / 5)
            assert Recipe.from_dict(run["recipe"]).model.name == f"forslov2018_{row['network']}_init1"
            assert found["train_loss"] > 0
            folder = tmp_path / f"{name}-{row['network']}-init1-seed0"
            assert json.loads((folder / "result.json").read_text()) == run
            assert not (folder / "last.ckpt").exists()
        assert row["cells"][2] == f"{paper.ACCURACY[row['network'], 1][0]:.3f}"
        assert row["cells"][3] == f"{row['sets']['mini']['accuracy']:.3f}"

    monkeypatch.setattr(training, "train", None)  # what is finished is read, by the other tables too
    monkeypatch.setattr(training, "resume", None)
    main(words)
    assert "run 1 of 4" not in capsys.readouterr().out
    assert json.loads((tmp_path / "forslov2018-table3-small-tiny.json").read_text()) == values

    main(["table", "forslov2018-table4", "--data", tiny, "--out", str(tmp_path)])
    robust = json.loads((tmp_path / "forslov2018-table4-small-tiny.json").read_text())
    assert robust["heads"][2:6] == ["unchanged paper", "ours", "translation paper", "translation 0.25 ours"]
    assert "Trained on basic, 5 classes; the thesis on hard" in robust["note"]
    for row, accuracy in zip(robust["rows"], values["rows"], strict=True):
        assert row["paper_accuracy"]["unchanged"] == paper.ACCURACY[row["network"], 1][-1]
        assert row["paper_accuracy"]["noise"] == paper.ROBUSTNESS[row["network"], 1][2]
        assert row["cells"][-2] == "–"
        assert row["accuracy_by_seed"]["unchanged"] == pytest.approx([accuracy["sets"]["basic"]["accuracy"]])
        points = {(point["perturbation"], point["strength"]) for point in row["points_by_seed"][0]}
        assert points == {(change, s) for change, most in changed_images.SHOWN.items() for s in (0, most)}
    monkeypatch.setattr(changed_images, "measure_robustness", None)  # kept in the runs' folders
    main(["table", "forslov2018-table4", "--data", tiny, "--out", str(tmp_path)])
    assert json.loads((tmp_path / "forslov2018-table4-small-tiny.json").read_text()) == robust


def test_an_interrupted_grid_goes_on(tiny, only, tmp_path, monkeypatch):
    only("emnet1")
    trained, usual = [], training.train

    def train(recipe, folder, **options):
        if trained:
            raise KeyboardInterrupt
        trained.append(folder.name)
        return usual(recipe, folder, **options)

    monkeypatch.setattr(training, "train", train)
    table = table_3("small").on(tiny)
    with pytest.raises(KeyboardInterrupt):
        table.run(tmp_path, [0], "", QUIET)
    monkeypatch.setattr(training, "train", usual)
    values = table.run(tmp_path, [0], "", QUIET)
    assert trained == ["mini-emnet1-init1-seed0"]
    assert [*values["rows"][0]["sets"]] == ["mini", "basic"]


def test_the_strengths_of_the_full_budget_are_curves():
    strengths = table_4("full")._strengths()
    for change, given in strengths.items():
        assert set(PERTURBATIONS[change].strengths) <= set(given)
        assert changed_images.SHOWN[change] in given


def test_table_2_counts_what_the_paper_counts(tmp_path):
    values = table_2("small").run(tmp_path, [0], "", QUIET)
    rows = {row["cells"][0]: row["counts"] for row in values["rows"]}
    assert [count["ours"] for count in rows["EM-NET 1"]] == [351_744, 354_304, 356_864]
    for name, counts in rows.items():
        assert [count["classes"] for count in counts] == [5, 10, 15]
        missing = 1_179_648 if name.startswith("DECODER") else 0  # the misprint, docs/papers/forslov2018.md
        assert {count["paper"] - count["ours"] for count in counts} == {missing}
    assert len(rows) == 11


def test_table_5_times_all_networks_in_one_run(tiny, only, tmp_path, monkeypatch):
    monkeypatch.setitem(table5.REPEATS, "small", 1)
    monkeypatch.setitem(table5.SECONDS, "small", 0.0)
    only("capsnet1", "cnnnet1", "cnnnet3")
    table = dataclasses.replace(table_5("small"), size=64)
    assert table.rows == [("capsnet1", False), ("cnnnet1", False), ("cnnnet3", False), ("capsnet1", True)]
    values = table.run(tmp_path, [0], "", QUIET)
    rows = {row["cells"][0]: row for row in values["rows"]}
    seconds = {name: row["seconds"][-1]["median"] for name, row in rows.items()}
    assert rows["CAPSNET 1"]["times_as_long_as_cnn"] == pytest.approx(seconds["CAPSNET 1"] / seconds["CNN-NET 3"])
    assert rows["CAPSNET 1 + decoder"]["paper_times_as_long_as_cnn"] == pytest.approx(2.79 / 0.13)
    assert rows["CNN-NET 1"]["times_as_long_as_cnn"] is None
    assert rows["CNN-NET 1"]["cells"][1:3] == ["0.11", "0.09"]
    assert rows["CNN-NET 1"]["cells"][4:7] == ["–", "–", "–"]
    one_image = {name: row["seconds"][0]["median"] for name, row in rows.items()}
    ratio = one_image["CAPSNET 1"] / one_image["CNN-NET 3"]
    assert rows["CAPSNET 1"]["one_image_forward_times_as_long_as_cnn"] == pytest.approx(ratio)
    assert [len(group["rows"]) for group in values["times"]] == [3 * 2 * 2, 1 * 2 * 2]


def test_table_5_has_a_decoder_on_every_capsule_network():
    rows = table_5("small").rows
    assert len(rows) == 7 + 4
    assert {network for network, decoder in rows if decoder} == {"capsnet1", "capsnet2", "emnet1", "emnet2"}


@pytest.mark.parametrize("name", ["forslov2018-table2", "forslov2018-table5"])
def test_tables_without_images_or_training_say_so(name, tmp_path):
    table = TABLES[name]("small")
    with pytest.raises(ValueError, match=r"data: must not be given for Forslöv 2018, Table .*got 'pbc'"):
        table.on("pbc")
    with pytest.raises(ValueError, match=r"seeds: must not be given for .* which trains nothing, got \(0, 1\)"):
        table.run(tmp_path, [0, 1], "", QUIET)


def test_accuracies_by_hand():
    assert accuracies_of([{"test": {"error_percent": 12.5}}]) == [0.875]


def test_tables_and_figures_of_the_first_runs_alone(tiny, tmp_path):
    """A night makes them after each run: what is not there says so, or has no line."""
    table = table_3("small").on(tiny)
    first, *_ = table.trainings()
    results = {first.slug: Grid(tmp_path, QUIET).results([first], [0])[first.slug]}
    values = table.made_of(results, tmp_path, "c", QUIET)
    ours = [values["rows"][0]["cells"][3], *(row["cells"][5] for row in values["rows"])]
    assert re.fullmatch(r"[01]\.\d{3}", ours[0])
    assert ours[1:] == ["not run", "not run"]
    assert values["rows"][0]["slugs"] == ["mini-emnet1-init1", "basic-emnet1-init1"]
    assert "one seed" in values["measured"]
    a_night = table_3("night").on(tiny).made_of(results, tmp_path, "c", QUIET)
    assert marked_cells(a_night)[0][3] == f"{ours[0]} (few images)"
    sizes = figure_31("small").on(tiny).made_of(results, tmp_path, "c", QUIET)
    lines = [line for panel in sizes["panels"] for line in panel["series"] if not line["paper"]]
    assert [len(line["x"]) for line in lines] == [1, 0]
    (run,) = results[first.slug]
    other = run | {"seed": 1, "test": run["test"] | {"error_percent": run["test"]["error_percent"] / 2}}
    more = results | {first.slug: [run, other], first.slug.replace("mini", "basic"): [run]}
    sizes = figure_31("small").on(tiny).made_of(more, tmp_path, "c", QUIET)
    (line, _) = [line for panel in sizes["panels"] for line in panel["series"] if not line["paper"]]
    assert [sd is None for sd in line["sd"]] == [False, True]
    curves = figure_33("small").on(tiny).made_of(results, tmp_path, "c", QUIET)
    assert [[line["name"] for line in panel["series"]] for panel in curves["panels"]] == [["EM-NET 1, INIT-NET 1"]]


def test_table_4_of_some_runs(tiny, tmp_path):
    table = table_4("small").on(tiny)
    first, _ = table.trainings()
    results = Grid(tmp_path, QUIET).results([first], [0])
    values = table.made_of(results, tmp_path, "c", QUIET)
    assert [row["cells"][3] == "not run" for row in values["rows"]] == [False, True]
    assert values["rows"][1]["accuracy_by_seed"] == {}
