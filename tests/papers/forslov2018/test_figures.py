"""The thesis's figures, from the command line to picture and JSON, on tiny images and budgets."""

import json

import pytest
from PIL import Image
from rich.console import Console

from capsella.cli import main
from capsella.data import catalogue
from capsella.data.source import Parts, Source
from capsella.grid import run as training
from capsella.papers import get_recipe
from capsella.papers.forslov2018 import figures_31_32 as trends
from capsella.papers.forslov2018 import figures_33_34_37 as curves
from capsella.papers.forslov2018 import figures_35_36 as perturbed_capsules
from capsella.papers.forslov2018 import paper, runs
from capsella.papers.published import FIGURES
from capsella.report.tweaks import row_changes
from capsella.training import RunFolder

QUIET = Console(quiet=True)


@pytest.fixture
def draw(tiny, tmp_path, capsys):
    """Draw a figure by its number; the values in its JSON."""

    def call(number, *words):
        main(["figure", f"forslov2018-{number}", "--data", tiny, "--out", str(tmp_path), *words])
        out = capsys.readouterr().out
        path = tmp_path / f"forslov2018-figure{number}-small-tiny.png"
        assert str(path) in out
        with Image.open(path) as picture:
            assert min(picture.size) > 250
        values = json.loads(path.with_suffix(".json").read_text())
        assert values["command"].startswith(f"capsella figure forslov2018-{number} --budget small")
        assert values["title"].startswith(f"Forslöv 2018, Figure {number}:")
        return values

    return call


def lines(values, panel=0):
    return {(line["name"], line["paper"]): line for line in values["panels"][panel]["series"]}


def test_figures_31_and_33_share_the_runs(draw, only, tmp_path, monkeypatch):
    only("emnet1")
    monkeypatch.setattr(trends, "FAMILIES", {"emnet": "EM routing"})
    monkeypatch.setattr(curves, "FAMILIES", {"emnet": "EM routing"})
    values = draw(31)
    found = lines(values)
    assert found["EM-NET 1", True]["x"] == [1500, 4500, 12_963, 24_881]
    assert found["EM-NET 1", True]["y"] == [0.584, 0.658, 0.741, 0.740]
    ours = found["EM-NET 1", False]
    assert ours["x"] == [500, 510]
    errors = [values["runs"][f"{name}-emnet1-init1"][0]["test"]["error_percent"] for name in ("mini", "basic")]
    assert ours["y"] == pytest.approx([1 - error / 100 for error in errors])

    monkeypatch.setattr(training, "train", None)
    monkeypatch.setattr(training, "resume", None)
    values = draw(33)
    assert [panel["title"] for panel in values["panels"]] == ["mini", "basic"]
    line = lines(values)["EM-NET 1, INIT-NET 1", False]
    metrics = RunFolder(tmp_path / "mini-emnet1-init1-seed0").read_metrics()
    assert line["x"] == [1, 2]
    assert line["y"] == pytest.approx(1 - metrics["validation_error"] / 100)


def test_figure_32_takes_as_many_classes_as_there_are(draw, only):
    only("emnet1", "cnnnet1")
    values = draw(32)
    capsules, em, cnn = (lines(values, panel) for panel in range(3))
    assert em["EM-NET 1", False]["x"] == [2, 3, 4, 5]
    assert cnn["CNN-NET 1", False]["x"] == [2, 3, 4, 5]
    assert capsules == {}
    assert cnn["CNN-NET 1", True]["x"] == [5, 10, 15]
    assert cnn["CNN-NET 1", True]["y"] == [0.793, 0.750, 0.253]
    assert "the first 2 to 5 of them" in values["note"]
    assert len(values["runs"]["classes2-cnnnet1-init1"]) == 1


def test_figure_32_leaves_em_nets_out_where_their_costs_teach_nothing(tiny):
    figure = FIGURES["forslov2018-32"]("full").on(tiny)
    points, note = figure.points()
    assert "EM-NETs start at 3" in note
    names = {run.slug for run in figure.plan(points)}
    assert "classes2-emnet1-init1" not in names
    assert {"classes2-cnnnet1-init1", "classes3-emnet1-init2", "basic-emnet1-init1"} <= names


def test_figure_34_has_a_panel_a_seed_and_counts_spikes(draw):
    values = draw(34, "--seeds", "0", "1")
    assert [panel["title"] for panel in values["panels"]] == ["seed 0", "seed 1"]
    assert [line["name"][:6] for line in values["panels"][0]["series"]] == ["3e-04:", "3e-05:", "3e-06:"]
    assert [(one["seed"], one["learning_rate"]) for one in values["spikes"]] == [
        (seed, rate) for seed in (0, 1) for rate in (3e-4, 3e-5, 3e-6)
    ]
    for rate in (3e-4, 3e-5, 3e-6):
        (first, _) = values["runs"][f"mini-emnet1-init1-rate{rate:g}"]
        assert first["recipe"]["optimizer"]["learning_rate"] == rate
        assert first["recipe"]["optimizer"]["decay"] == 1
        assert first["recipe"]["model"]["batch_norm"]
        assert "routing" not in first["recipe"]["model"]  # the network's own: the thesis's
        assert first["recipe"]["batch_size"] == runs.FINE.batch_size


def test_figures_35_to_37(draw, only, monkeypatch):
    monkeypatch.setattr(perturbed_capsules, "CANDIDATES", 5)
    only("capsnet1", "emnet1")
    values = draw(37)
    assert [name for name, _ in lines(values)] == ["with reconstruction", "without reconstruction"]
    for decoder in ("decoder", "no-decoder"):
        (run,) = values["runs"][f"mini-capsnet1-init1-{decoder}"]
        assert run["recipe"]["model"]["reconstruction"] == (decoder == "decoder")
        assert run["recipe"]["data"]["size"] == 64
    values = draw(35)
    assert values["offsets"] == pytest.approx([-0.4, -0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3, 0.4])
    own, among = values["nearest_is_own_percent"], values["nearest_among"]
    assert f"For {own * among / 100:.0f} of {among} test images, the nearest to the reconstruction" in values["note"]
    effects = {int(element): change for element, change in values["mean_change_by_element"].items()}
    assert len(effects) == 5
    assert values["elements"] == sorted(sorted(effects, key=effects.__getitem__)[-3:])
    values = draw(36)
    assert (values["offsets"][0], values["offsets"][-1], len(values["elements"])) == (-5, 5, 4)


def test_the_full_budget_of_the_single_runs():
    full = runs.ThesisRuns("full")
    rate = full.with_learning_rate(3e-5).recipe
    assert rate.epochs * rate.epoch_images == 5 * 100_000
    assert (rate.optimizer.learning_rate, rate.batch_size) == (3e-5, 5)
    drawn = full.with_decoder("capsnet1", True).recipe
    usual = get_recipe("forslov2018-capsnet1-init1")
    assert (drawn.model, drawn.loss, drawn.data.size) == (usual.model, usual.loss, 224)


def test_more_classes_than_five_give_the_sets_of_the_thesis(tiny, monkeypatch):
    images = catalogue._SOURCES["tiny"].read(None)
    classes = tuple("abcdef")
    parts = [type(part)(part.images, part.labels.clone(), classes) for part in images.named().values()]
    for part in parts:
        part.labels[: max(1, len(part.labels) // 2) : 5] = 5
    more = Source("tiny", lambda _: Parts("tiny", *parts), "", "", 6, (), "", "")
    monkeypatch.setitem(catalogue._SOURCES, "tiny", more)
    points, note = FIGURES["forslov2018-32"]("small").on(tiny).points()
    assert points == {"basic": 5, "hard": 6}
    assert "Left out medium: it has 10 classes, tiny has 6." in note
    points, _ = FIGURES["forslov2018-31"]("small").on(tiny).points()
    assert points == {"mini": 502, "hard": 510}


def test_spikes_by_hand():
    def spikes(*accuracies):
        return curves.spikes_to_chance(range(len(accuracies)), accuracies, classes=5, images=100)

    assert spikes(0.2, 0.3, 0.2) == []  # never learnt: 0.6 is halfway
    assert spikes(0.6, 0.29, 0.27, 0.2, 0.5, 0.28) == [2, 5]  # chance + 2 · 0.04 = 0.28
    assert spikes(0.2, 0.2, 0.6) == []


def test_effect_is_of_the_outermost_offsets():
    import torch

    grid = torch.zeros(2, 3, 1, 2, 2)
    grid[1, 0], grid[1, 2] = 0.25, 0.75
    assert row_changes(grid).tolist() == [0, 0.5]


@pytest.mark.parametrize("words", [["figure"], ["figure", "--help"], ["figure", "forslov2018-30"]])
def test_without_a_known_name_the_figures_are_listed(words, capsys):
    code = 0
    try:
        main(words)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert all(name in out for name in FIGURES)
    assert code == (words[-1] == "forslov2018-30")
    assert ("figure: must be a registered name, got 'forslov2018-30'" in err) == bool(code)


def test_the_paper_has_numbers_for_every_network_of_a_trend():
    for figure in (trends.figure_31("full"), trends.figure_32("full")):
        assert all(name in paper.SETS for name in figure.in_paper)
