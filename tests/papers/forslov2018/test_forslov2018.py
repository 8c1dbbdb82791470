"""The thesis's numbers typed once more, and its tables and figures, on tiny images and budgets."""

import dataclasses
import json

import pytest
from PIL import Image

from capsella.cli import main
from capsella.data import load_data
from capsella.errors import ArgumentError, CapsellaError
from capsella.experiments import fit as training
from capsella.papers.forslov2018 import figures, paper, tables
from capsella.papers.forslov2018.runs import ThesisItem
from capsella.papers.published import FIGURES, TABLES
from capsella.training import RunFolder
from capsella.training.registry import get_recipe
from tests.papers.tiny import QUIET

# Table 3, INIT-NET 1/2.
TABLE_3 = """
CAPSNET 1 | .620/.515 | .713/.634 | .708/.663 | .884/.892 | .859/.849 | .732/.597
CAPSNET 2 | .636/.578 | .694/.428 | .627/.566 | .907/.901 | .829/.780 | .674/.639
EM-NET 1 | .584/.547 | .658/.608 | .741/.688 | .926/.907 | .861/.855 | .740/.731
EM-NET 2 | .586/.451 | .526/.542 | .660/.675 | .915/.884 | .809/.812 | .678/.714
CNN-NET 1 | .434/.377 | .388/.430 | .358/.304 | .793/.869 | .750/.623 | .253/.400
CNN-NET 2 | .570/.509 | .663/.543 | .689/.483 | .911/.809 | .819/.455 | .557/.645
CNN-NET 3 | .542/.431 | .316/.538 | .599/.455 | .804/.891 | .856/.865 | .772/.760
"""
# Table 4: translation/rotation/noise, behind INIT-NET 1 and 2.
TABLE_4 = {
    "CAPSNET 1": ".282/.727/.463 .150/.597/.264",
    "CAPSNET 2": ".241/.671/.511 .211/.633/.326",
    "EM-NET 1": ".504/.738/.711 .414/.721/.709",
    "EM-NET 2": ".284/.674/.657 .271/.708/.710",
    "CNN-NET 1": ".100/.251/.194 .112/.399/.397",
    "CNN-NET 2": ".187/.559/.512 .222/.633/.642",
    "CNN-NET 3": ".391/.762/.758 .300/.752/.572",
}
# Table 5, CPU/GPU.
TABLE_5 = {
    "CAPSNET 1": "0.83/0.17",
    "CAPSNET 2": "2.62/0.55",
    "CAPSNET 1 + decoder": "2.79/0.25",
    "CAPSNET 2 + decoder": "4.63/0.67",
    "EM-NET 1": "0.84/0.12",
    "EM-NET 2": "2.79/0.12",
    "CNN-NET 1": "0.11/0.09",
    "CNN-NET 2": "0.16/0.10",
    "CNN-NET 3": "0.13/0.09",
}
KEYS = {name: key for key, name in paper.NETWORKS.items()}


def test_the_papers_numbers():
    lines = [line.split(" | ") for line in TABLE_3.strip().splitlines()]
    assert {
        (KEYS[name], init): tuple(float(cell.split("/")[init - 1]) for cell in cells)
        for name, *cells in lines
        for init in (1, 2)
    } == paper.ACCURACY
    assert {
        (KEYS[name], init): tuple(map(float, cells.split()[init - 1].split("/")))
        for name, cells in TABLE_4.items()
        for init in (1, 2)
    } == paper.ROBUSTNESS
    assert {
        (KEYS[name.removesuffix(" + decoder")], "decoder" in name): tuple(map(float, cells.split("/")))
        for name, cells in TABLE_5.items()
    } == paper.TIMES
    assert paper.SET_IMAGES == {"mini": 1500, "small": 4500, "medium-size": 12_963, "hard": 24_881}
    assert paper.SET_CLASSES == {"basic": 5, "medium": 10, "hard": 15}


def item(budget, source="pbc-subset"):
    return ThesisItem(title="", budget=budget, source=source)


def test_the_full_budget_is_as_long_as_the_thesis():
    grid = item("full").grid(paper.SETS)
    assert len(grid) == 7 * 2 * 6
    for row in grid:
        recipe, registered = row.recipe, get_recipe(row.recipe_name)
        steps = recipe.epochs * recipe.epoch_images // recipe.batch_size
        longer = row.slug.startswith("hard") and "capsnet" not in row.slug
        assert (recipe.batch_size, steps) == (5, 200_000 if longer else 100_000)
        same = (registered.model, registered.loss, registered.optimizer)
        assert (recipe.model, recipe.loss, recipe.optimizer) == same
    rate = item("full").with_learning_rate(3e-5).recipe
    assert (rate.epochs * rate.epoch_images, rate.optimizer.learning_rate) == (5 * 100_000, 3e-5)


def test_sets_that_the_source_has(tiny):
    full = item("full", tiny)
    counts = full.images_by_set()
    assert counts == {"mini": 500, "basic": 510}
    for name, count in counts.items():
        assert len(load_data(full.options(name)).train) == count
    assert load_data(item("small", tiny).options("classes3")).classes == ("a", "b", "c")
    with pytest.raises(CapsellaError, match="small, medium"):
        full.images_by_set(("small", "medium"))
    assert TABLES["forslov2018-table4"]("full").on(tiny).largest_set() == "basic"


def test_tables_3_and_4_share_their_runs(tiny, tmp_path, monkeypatch):
    words = ["--data", tiny, "--out", str(tmp_path)]
    main(["papers", "run", "forslov2018-table3", *words])
    path = tmp_path / "forslov2018-table3.json"
    values = json.loads(path.read_text())
    assert values["heads"] == ["network", "INIT-NET", "mini paper", "mini ours", "basic paper", "basic ours"]
    assert [row["cells"][0] for row in values["rows"]] == ["EM-NET 1", "CNN-NET 1"]
    for row in values["rows"]:
        key = KEYS[row["cells"][0]]
        for column, (name, (run,)) in enumerate(row["runs"].items()):
            printed, ours = row["cells"][2 + 2 * column :][:2]
            assert printed == f"{paper.ACCURACY[key, 1][paper.SETS.index(name)]:.3f}"
            assert ours == f"{1 - run['test']['errors'] / 5:.3f}"
            assert json.loads((tmp_path / f"{name}-{key}-init1-seed0" / "result.json").read_text()) == run

    monkeypatch.setattr(training, "train", None)  # what is finished is read
    main(["papers", "run", "forslov2018-table4", *words])
    path = tmp_path / "forslov2018-table4.json"
    robust = json.loads(path.read_text())
    for row, accuracy in zip(robust["rows"], values["rows"], strict=True):
        key = KEYS[row["cells"][0]], 1
        printed = [paper.ACCURACY[key][-1], *paper.ROBUSTNESS[key]]
        assert row["cells"][2:10:2] == [f"{share:.3f}" for share in printed]
        assert row["cells"][3] == accuracy["cells"][5]
        assert set(row["accuracy_by_seed"]) == {"unchanged", *tables.STRENGTHS}
    monkeypatch.setattr(tables, "measure_robustness", None)  # kept in the runs' folders
    main(["papers", "run", "forslov2018-table4", *words])
    assert json.loads(path.read_text()) == robust


def test_table_2_counts_what_the_paper_counts(tmp_path):
    values = TABLES["forslov2018-table2"]("small").run(tmp_path, [0], "", QUIET)
    rows = {row["cells"][0]: row["counts"] for row in values["rows"]}
    assert len(rows) == 11
    assert rows["EM-NET 1"][1::2] == [351_744, 354_304, 356_864]
    for name, counts in rows.items():
        missing = 1_179_648 if name.startswith("DECODER") else 0  # the misprint, docs/papers/forslov2018.md
        assert {printed - ours for printed, ours in zip(counts[::2], counts[1::2], strict=True)} == {missing}


def test_table_5_times_all_networks_in_one_run(tiny, only, tmp_path, monkeypatch):
    monkeypatch.setitem(tables.ROUNDS, "small", (1, 0.0))
    only("capsnet1", "cnnnet1", "cnnnet3")
    table = dataclasses.replace(TABLES["forslov2018-table5"]("small"), size=64)
    values = table.run(tmp_path, [0], "", QUIET)
    rows = {row["cells"][0]: row for row in values["rows"]}
    seconds = {name: row["seconds"][-1]["median"] for name, row in rows.items()}
    assert rows["CAPSNET 1"]["ratios"][1] == pytest.approx(seconds["CAPSNET 1"] / seconds["CNN-NET 3"])
    assert rows["CAPSNET 1 + decoder"]["ratios"][0] == pytest.approx(2.79 / 0.13)
    assert rows["CNN-NET 1"]["cells"][4:7] == ["–", "–", "–"]
    with pytest.raises(ArgumentError):
        table.on("pbc-subset")


@pytest.fixture
def draw(tiny, tmp_path):
    """Draw a figure by its number; return its JSON."""

    def call(number, *words):
        main(["papers", "run", f"forslov2018-{number}", "--data", tiny, "--out", str(tmp_path), *words])
        path = tmp_path / f"forslov2018-figure{number}.png"
        with Image.open(path) as picture:
            assert min(picture.size) > 250
        return json.loads(path.with_suffix(".json").read_text())

    return call


def lines(values, panel=0):
    return {(line["name"], line["paper"]): line for line in values["panels"][panel]["series"]}


def test_figures_31_and_33_share_their_runs(draw, only, tmp_path, monkeypatch):
    only("emnet1")
    monkeypatch.setattr(figures, "FAMILIES", {"emnet": "EM routing"})
    values = draw(31)
    assert lines(values)["EM-NET 1, INIT-NET 1", True]["x"] == [1500, 4500, 12_963, 24_881]
    assert lines(values)["EM-NET 1, INIT-NET 1", True]["y"] == [0.584, 0.658, 0.741, 0.740]
    ours = lines(values)["EM-NET 1, INIT-NET 1", False]
    errors = [values["runs"][f"{name}-emnet1-init1"][0]["test"]["error_percent"] for name in ("mini", "basic")]
    assert (ours["x"], ours["y"]) == ([500, 510], pytest.approx([1 - error / 100 for error in errors]))
    monkeypatch.setattr(training, "train", None)
    values = draw(33)
    assert [panel["title"] for panel in values["panels"]] == ["mini", "basic"]
    line = lines(values)["EM-NET 1, INIT-NET 1", False]
    metrics = RunFolder(tmp_path / "mini-emnet1-init1-seed0").read_metrics()
    assert line["y"] == pytest.approx(1 - metrics["validation_error"] / 100)


def test_figure_32_takes_as_many_classes_as_there_are(tiny):
    figure = FIGURES["forslov2018-32"]("full").on(tiny)
    names = {row.slug for row in figure.rows_to_train()}
    assert "classes2-emnet1-init1" not in names  # standardised costs of two classes teach nothing
    assert {"classes2-cnnnet1-init1", "classes3-emnet1-init2", "basic-emnet1-init1"} <= names
    assert figures.set_classes(figure) == {"classes2": 2, "classes3": 3, "classes4": 4, "basic": 5}


def test_figure_34_has_a_panel_per_seed_and_counts_spikes(draw):
    values = draw(34, "--seeds", "2")
    assert [panel["title"] for panel in values["panels"]] == ["seed 0", "seed 1"]
    assert [(spike["seed"], spike["learning_rate"]) for spike in values["spikes"]] == [
        (seed, rate) for seed in (0, 1) for rate in (3e-4, 3e-5, 3e-6)
    ]
    for rate in (3e-4, 3e-5, 3e-6):
        (first, _) = values["runs"][f"mini-emnet1-init1-rate{rate:g}"]
        assert (first["recipe"]["optimizer"]["learning_rate"], first["recipe"]["optimizer"]["decay"]) == (rate, 1)

    def spikes(*accuracies):
        return figures.spikes_to_chance(range(len(accuracies)), accuracies, classes=5, images=100)

    assert spikes(0.2, 0.3, 0.2) == []  # never learnt: 0.6 is halfway
    assert spikes(0.6, 0.29, 0.27, 0.2, 0.5, 0.28) == [2, 5]  # chance + 2 · 0.04 = 0.28


def test_figures_35_to_37(draw, only, tmp_path, tiny):
    only("capsnet1", "emnet1")
    values = draw(37)
    for decoder in ("decoder", "no-decoder"):
        (run,) = values["runs"][f"mini-capsnet1-init1-{decoder}"]
        assert run["recipe"]["model"]["reconstruction"] == (decoder == "decoder")
    for number, most, elements in ((35, 0.4, 3), (36, 5.0, 4)):
        figure = FIGURES[f"forslov2018-{number}"]("small").on(tiny)
        (drawn,) = figure.run(tmp_path, (0,), "c", QUIET)["figures"]
        shown = drawn["shown"]
        assert shown["offsets"] == pytest.approx([most * step / 4 for step in range(-4, 5)])
        effects = {int(element): change for element, change in shown["mean_change_by_element"].items()}
        assert shown["elements"] == sorted(sorted(effects, key=effects.__getitem__)[-elements:])
        with Image.open(tmp_path / f"forslov2018-figure{number}.png") as picture:
            assert min(picture.size) > 250
