"""Attacks on networks of one error: the published table, and one from its runs on scikit-learn's digits."""

import dataclasses
import json

import pytest

from capsella.errors import CapsellaError
from capsella.evaluation import AttackCurve, AttackOptions, UnderAttack
from capsella.evaluation.attacks import curves as adversarial
from capsella.grid import Row
from capsella.papers.hinton2018.attacks import attacks
from capsella.papers.kinds import attack_table as attack_tables
from capsella.papers.kinds.attack_table import AttackTable
from capsella.papers.kinds.published import marked_cells
from capsella.papers.published import TABLES
from tests.papers import tiny
from tests.papers.tiny import QUIET

CAPSNET, CNN = (
    dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, test_per_class=1), stop_at_error=0.0)
    for recipe in (tiny.CAPSNET, tiny.CNN)
)
OPTIONS = AttackOptions(epsilons=(0.1, 0.5), steps=1, restarts=1)


def row(slug, recipe):
    return Row(slug=slug, recipe_name="demo", recipe=recipe)


def tiny_table(options=OPTIONS):
    networks = {"caps": row("caps", CAPSNET), "cnn": row("cnn", CNN)}
    return AttackTable("A paper", "A note.", networks, options)


@pytest.mark.parametrize("budget", ["small", "full"])
def test_three_networks_of_one_error_on_the_same_images(budget):
    table = attacks(budget)
    assert [row.recipe.model.name for row in table.rows] == [
        "sabour2017_capsnet",
        f"hinton2018_matrix_capsnet{'_small' if budget == 'small' else ''}",
        "hinton2018_cnn",
    ]
    assert {row.recipe.data.size for row in table.rows} == {24 if budget == "small" else 32}
    assert not any(row.recipe.model.options.get("crop") for row in table.rows)
    assert len({(row.recipe.stop_at_error, row.recipe.stop_on, row.recipe.epoch_images) for row in table.rows}) == 1
    assert table.rows[0].recipe.stop_on == "test"
    assert {row.recipe.data.name for row in table.on("smallnorb-jpeg").rows} == {"smallnorb-jpeg"}
    assert TABLES["hinton2018-attacks"] is attacks


def test_a_night_attacks_networks_as_good_as_the_papers():
    table = attacks("night")
    assert [row.recipe.model.name for row in table.rows] == ["stem_matrix_capsnet", "hahn2019_convnet_cnn"]
    assert {(row.recipe.data.size, row.recipe.stop_at_error, row.recipe.stop_on) for row in table.rows} == {
        (48, 4.3, "test")
    }
    assert {row.recipe.optimizer.rate_at(step, 10_000) for row in table.rows for step in (500, 9_999)} == {3e-3}


def test_a_table_from_its_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(adversarial, "FULL_REACH_STEPS", 1)
    monkeypatch.setattr(adversarial, "FULL_REACH_RESTARTS", 1)
    folder = tmp_path / "mine"
    values = tiny_table().run(folder, (0, 1), "capsella table …", QUIET)
    assert json.loads((folder / "mine.json").read_text()) == values
    assert values["heads"] == ["attack", "ε", "caps, accuracy %", "cnn, accuracy %"]
    kinds = ["FGSM", "BIM", "PGD", "vote", "transfer from caps", "transfer from cnn"]
    assert [tuple(row["cells"][:2]) for row in values["rows"]] == [
        ("none", "0"),
        *((kind, epsilon) for kind in kinds for epsilon in ("0.1", "0.5")),
        ("PGD, check for masked gradients", "1"),
    ]
    none = values["rows"][0]
    assert [attack["options"]["seed"] for attack in none["attacks"]] == [0, 1]
    for name, runs in none["runs"].items():
        assert [run["seed"] for run in runs] == [0, 1]
        # The images that are attacked are the test's.
        assert none["accuracy_percent"][name] == pytest.approx([100 - run["test"]["error_percent"] for run in runs])
    assert "10 test images of digits" in values["measured"]
    monkeypatch.setattr(attack_tables, "attack_networks", None)  # what is finished is read
    assert tiny_table().run(folder, (0, 1), "capsella table …", QUIET) == values
    with pytest.raises(CapsellaError, match=r"attacks-seed0.json holds other attacks; choose another folder, or move"):
        tiny_table(dataclasses.replace(OPTIONS, steps=2)).run(folder, (0,), "", QUIET)
    result = json.loads((folder / "cnn-seed1" / "result.json").read_text())
    result["test"]["correct"] = "another training's"
    (folder / "cnn-seed1" / "result.json").write_text(json.dumps(result))
    with pytest.raises(
        CapsellaError, match=r"attacks-seed1.json is of networks that were trained anew since; move that"
    ):
        tiny_table().run(folder, (0, 1), "", QUIET)
    (folder / "caps-seed2").mkdir()
    (folder / "caps-seed2" / "diverged.json").write_text("{}")
    assert tiny_table().run(folder, (0,), "", QUIET)["measured"].endswith(". Diverged: caps-seed2.")


def test_cells_by_hand(tmp_path, monkeypatch):
    def network(clean, at_full_reach, *curves):
        return UnderAttack(clean, at_full_reach, 0.0, 0, tuple(AttackCurve(*curve) for curve in curves))

    found = {
        0: {
            "caps": network(80.0, 0.0, ("FGSM", None, (60.0, 20.0)), ("vote", None, (50.0, 10.0))),
            "cnn": network(70.0, 0.0, ("FGSM", None, (40.0, 0.0)), ("transfer", "caps", (66.0, 44.0))),
        },
        1: {
            "caps": network(90.0, 0.0, ("FGSM", None, (62.0, 22.0)), ("vote", None, (50.0, 10.0))),
            "cnn": network(70.0, 3.0, ("FGSM", None, (40.0, 0.0)), ("transfer", "caps", (66.0, 44.0))),
        },
    }
    monkeypatch.setattr(attack_tables, "attack_networks", lambda models, images, options, progress: found[options.seed])
    monkeypatch.setattr(attack_tables, "load_run", lambda folder: type("Run", (), {"model": None}))
    values = tiny_table().run(tmp_path, (0, 1), "", QUIET)
    short = marked_cells({**values, "command": "capsella table x --budget small"})
    assert short[3] == ["vote", "0.1", "50.00 ± 0.00 (short)", "–"]
    assert [row["cells"] for row in values["rows"]] == [
        ["none", "0", "85.00 ± 7.07", "70.00 ± 0.00"],
        ["FGSM", "0.1", "61.00 ± 1.41", "40.00 ± 0.00"],
        ["FGSM", "0.5", "21.00 ± 1.41", "0.00 ± 0.00"],
        ["vote", "0.1", "50.00 ± 0.00", "–"],
        ["vote", "0.5", "10.00 ± 0.00", "–"],
        ["transfer from caps", "0.1", "–", "66.00 ± 0.00"],
        ["transfer from caps", "0.5", "–", "44.00 ± 0.00"],
        ["PGD, check for masked gradients", "1", "0.00 ± 0.00", "1.50 ± 2.12"],
    ]
    assert "Masked gradients: cnn." in values["measured"]
    assert "caps did not reach it with seed 0; caps did not reach it with seed 1" in values["measured"]


def test_networks_of_different_images():
    other = dataclasses.replace(CNN, data=dataclasses.replace(CNN.data, size=20))
    networks = {"caps": row("caps", CAPSNET), "cnn": row("cnn", other)}
    with pytest.raises(ValueError, match=r"networks: must be at least one, all of the same images, got \['caps', 'cnn"):
        AttackTable("A paper", "", networks, OPTIONS)
