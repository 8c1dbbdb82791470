"""The league: its rows, what they have alike, what chooses their rates, and a tiny one from the command line."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from capsella.cli.main import main
from capsella.data import load_data
from capsella.errors import CapsellaError
from capsella.evaluation import AttackOptions
from capsella.grid import Budget, Hits, Validated, hits_of
from capsella.models import count_parameters
from capsella.papers.league import fields, measure, search, table
from capsella.papers.league.fields import FIELDS, OTHERS, Changed, Field, entrants, fields_on
from capsella.papers.league.ranks import ranks
from capsella.papers.league.table import League
from capsella.papers.published import OWN_TABLES
from capsella.routing import ROUTINGS
from capsella.training import ModelOptions, Recipe, RunFolder
from capsella.training.registry import get_recipe
from tests.papers.tiny import CAPSNET, QUIET

SHAPES = {"smallnorb": (48, 2, 5), "mnist40": (40, 1, 10), "pbc": (40, 3, 5), "cifar10": (32, 3, 10)}
"""Size, channels and classes of each source; those of smallnorb-jpeg-poses are smallnorb's."""
TINY = Budget(epochs=2, epoch_images=32, batch_size=16, validation_per_class=1, test_per_class=2, ema=0.9)


def changed(data):
    splits = load_data(dataclasses.replace(data, split_seed=1))
    return "digits again", splits.test


DIGITS = Field("digits", "league-tiny", ("digits",), Changed("others", changed), budgets={"small": TINY})
STOPPED = dataclasses.replace(DIGITS, label="digits, stopped", stops=True)
NAMES = ("heinsen", "heinsen, even", "CNN")


def tiny_recipe():
    """A network of two rows on digits."""
    return dataclasses.replace(
        CAPSNET, model=ModelOptions("league_capsnet", {"parameters": 80_000}), loss=get_recipe("league-digits").loss
    )


@pytest.mark.parametrize("source", SHAPES)
def test_parameters_are_equal(source):
    (field,) = [one for one in FIELDS if source in one.sources]
    size, channels, classes = SHAPES[source]
    for row in entrants(field, source, "night"):
        with torch.device("meta"):
            model = row.recipe.model.create(size, channels, tuple(map(str, range(classes))))
        assert count_parameters(model) == pytest.approx(128_000, rel=0.01), row.slug


@pytest.mark.parametrize("budget", ["small", "night", "full"])
def test_every_routing_by_its_name_and_all_else_alike(budget):
    assert OWN_TABLES["routings"] is League
    league = League(budget)
    evens = {"em, even", "heinsen, even", "inverted attention, even", "variational, even"}
    names = {*(name.replace("_", " ") for name in ROUTINGS), *OTHERS, *evens}
    assert len({row.slug for row in league.rows}) == len(league.rows) == len(FIELDS) * len(names)
    for field, source in league.fields:
        rows = entrants(field, source, budget)
        assert {row.label[1] for row in rows} == names
        for row in rows:
            same = dataclasses.replace(row.recipe, model=rows[0].recipe.model, loss=rows[0].recipe.loss)
            assert same == rows[0].recipe
            name = row.label[1].replace(" ", "_")
            if name in ROUTINGS:
                assert type(row.recipe.model.options["routing"]) is ROUTINGS[name]
            if row.label[1] in evens | {"uniform"}:
                (routed,) = [one for one in rows if one.even == row.slug]
                assert routed.label[1] == row.label[1].replace("uniform", "dynamic").removesuffix(", even")
            assert row.recipe.stop_at_error is None  # nothing looks at test images while rates are tried
    assert ("batches of" in league.note) == (budget != "full")


@pytest.mark.parametrize(("field", "source"), League("night").fields, ids=lambda one: getattr(one, "recipe", one))
def test_a_night_is_longer(field, source):
    def seen(budget):
        return {row.recipe.epochs * row.recipe.epoch_images for row in entrants(field, source, budget)}

    (small,), (night,) = seen("small"), seen("night")  # all rows alike
    assert night > 5 * small


def test_sources():
    assert [(field.label, source) for field, source in fields_on("mnist,cifar10-jpeg")] == [
        ("MNIST", "mnist40"),
        ("CIFAR-10", "cifar10-jpeg"),
    ]
    assert fields_on("smallnorb-jpeg-poses")[0][0].stops
    for field in FIELDS:  # every source takes the options of its field's images
        assert [field.base("small", source).data.name for source in field.sources] == list(field.sources)
    with pytest.raises(ValueError, match="'smallnorb-jpg'; did you mean smallnorb-jpeg"):
        fields_on("smallnorb-jpg")
    with pytest.raises(ValueError, match="data: must name each source once, got 'mnist,mnist40'"):
        fields_on("mnist,mnist40")


def test_ranks_stand_only_where_intervals_part():
    right = {name: np.arange(400) < number for name, number in {"a": 380, "b": 376, "c": 200, "d": 100}.items()}
    hits = {name: Hits(np.stack([row, row])) for name, row in right.items()}
    assert ranks(hits) == {"a": "1–2", "b": "1–2", "c": "3", "d": "4"}
    assert ranks({name: hits[name] for name in ("a", "b")}) == {"a": "–", "b": "–"}
    assert ranks({name: Hits(one.right[:1]) for name, one in hits.items()}) == {}  # one seed says nothing of others
    # A hundred views of four toys are not four hundred images.
    toys = np.repeat(np.arange(4), 100)
    assert ranks({name: Hits(hits[name].right, toys) for name in "ac"}) == {"a": "–", "c": "–"}
    # Seeds that differ as much as rows do part nothing.
    apart = {"a": Hits(np.stack([right["a"], right["d"]])), "c": Hits(np.stack([right["c"], right["c"]]))}
    assert ranks(apart) == {"a": "–", "c": "–"}


def test_a_hundred_equal_rows_do_not_part_by_their_number():
    """Each pair by itself would part some of them."""
    generator = np.random.default_rng(0)
    alike = {str(row): Hits(generator.random((3, 500)) < 0.9) for row in range(20)}
    assert set(ranks(alike).values()) == {"–"}


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("tried", "rate"),
    [
        ({1.0: (40, 30), 3.0: (39, 29)}, 3.0),
        ({1.0: (40, 30), 3.0: (20, 31)}, 1.0),  # one split, however much, is not enough
        ({0.5: (39, 28), 1.0: (40, 30), 3.0: (39, 29)}, 0.5),
        ({1.0: (np.inf, 30), 3.0: (39, 29)}, 3.0),
        ({1.0: (np.inf, np.inf), 3.0: (np.inf, np.inf)}, 1.0),
    ],
)
def test_another_rate_must_be_better_on_every_split(tried, rate):
    row = entrants(DIGITS, "digits", "small")[0]
    row = dataclasses.replace(
        row,
        recipe=dataclasses.replace(row.recipe, optimizer=dataclasses.replace(row.recipe.optimizer, learning_rate=1.0)),
    )
    runs = {at: [Validated(Path(), float(error), 0.0, 1, 0.0) for error in errors] for at, errors in tried.items()}
    assert search._chosen(row, runs).rate == rate


@pytest.fixture
def tiny(monkeypatch):
    """Two of its rows and two rates, on a few digits."""
    rows = ("self", "average pooling")
    monkeypatch.setitem(__import__("capsella.training.registry", fromlist=[""]).RECIPES, "league-tiny", tiny_recipe)
    monkeypatch.setattr(fields, "FIELDS", (DIGITS,))
    monkeypatch.setattr(fields, "ROUTINGS", {name: ROUTINGS[name] for name in rows if name in ROUTINGS})
    monkeypatch.setattr(fields, "OTHERS", {name: OTHERS[name] for name in rows if name in OTHERS})
    monkeypatch.setattr(search, "FACTORS", (1.0, 3.0))
    monkeypatch.setitem(table.ATTACKS, "small", (AttackOptions((0.03,), steps=1, restarts=1), 2))
    monkeypatch.setattr(measure, "MOST_ROUTED", 4)
    monkeypatch.setenv("COLUMNS", "200")


def values_of(folder):
    return json.loads((folder / f"{folder.name}.json").read_text())


@pytest.mark.usefixtures("tiny")
def test_a_tiny_league_from_the_command_line(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "mine"
    words = ["table", "routings", "--data", "digits", "--seeds", "0", "1", "--out", str(folder)]
    main(words)
    out = capsys.readouterr().out
    values = values_of(folder)
    assert {tuple(row["label"]) for row in values["rows"]} == {("digits", "self"), ("digits", "average pooling")}
    for row in values["rows"]:
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        tried = row["validation_errors_by_rate"]
        assert {rate: len(errors) for rate, errors in tried.items()} == dict.fromkeys(("0.001", "0.003"), search.SPLITS)
        assert row["rate"] in map(float, tried)
        assert row["training_images_per_second"] > 0
        assert len(row["changed"]) == 2
        cells = dict(zip(values["heads"], row["cells"], strict=True))
        low, high = row["error"]["interval_95_percent"]
        assert low <= row["error"]["error_percent"] <= high
        assert cells["error, ours %"].startswith(f"{row['error']['error_percent']:.2f} [{low:.1f}, {high:.1f}]")
        assert float(cells["memory MiB"]) > 0 or row["label"][1] == "average pooling"
        assert float(cells["ms an image"]) > 0
        assert cells["attacked, right %"].split()[0] in ("0.0", "50.0", "100.0")  # of two images
        assert cells["gain over even, points"] == "–"  # neither has such a row
        assert cells["rate"].endswith(" (edge)")  # as both of two rates are
        assert (cells["entropy"] == "–") == (row["label"][1] == "average pooling")
        for run in row["runs"]:
            assert Recipe.from_dict(run["recipe"]).optimizer.learning_rate == row["rate"]
    assert out.count("(short)") == 4
    assert values["command"] == "capsella table routings --budget small --seeds 0 1 --data digits"

    monkeypatch.setattr("capsella.grid.run.train", None)  # what is finished is read
    main(words)
    assert values_of(folder) == values


@pytest.mark.usefixtures("tiny")
def test_no_test_image_chooses_a_rate(tmp_path, monkeypatch):
    """Every rate is chosen before the first test, and by validation alone."""
    chosen, tested = [], []
    choose, finish = table.choose_rates, table.result_of

    def chose(rows, seed, grid):
        found = choose(rows, seed, grid)
        assert not tested
        assert not [*tmp_path.rglob("test.json"), *tmp_path.rglob("result.json")]
        for row, one in zip(rows, found, strict=True):
            usual, other = one.tried.values()
            assert one.rate == list(one.tried)[all(a > b for a, b in zip(usual, other, strict=True))]
            assert row.recipe.stop_at_error is None
        chosen.extend(found)
        return found

    def result(*arguments):
        tested.append(arguments)
        return finish(*arguments)

    monkeypatch.setattr(table, "choose_rates", chose)
    monkeypatch.setattr(table, "result_of", result)
    league = League("small", ((DIGITS, "digits"),))
    values = league.run(tmp_path, (0,), "capsella table routings --budget small", QUIET)
    assert len(chosen) == len(tested) == 2
    short = [RunFolder(path.parent).read_config()[1] for path in tmp_path.glob("*split*/config.json")]
    assert len(short) == 2 * 2 * search.SPLITS
    assert {recipe.data.split_seed for recipe in short} == set(range(search.SPLITS))
    assert {recipe.epochs for recipe in short} == {1}
    for row in values["rows"]:
        assert {run["recipe"]["data"]["validation"] for run in row["runs"]} == {search.LEFT_OUT}
        assert {run["recipe"]["epochs"] for run in row["runs"]} == {2}
        assert [run["training"].get("stopped") for run in row["runs"]] == [None]
        assert "not reached" not in dict(zip(values["heads"], row["cells"], strict=True))["error, ours %"]


@pytest.mark.usefixtures("tiny")
def test_networks_that_stop_at_one_error_have_the_recipe_s_rate(tmp_path):
    league = League("small", ((STOPPED, "digits"),))
    values = league.run(tmp_path, (0,), "capsella table routings --budget small", QUIET)
    assert not [*tmp_path.glob("*split*")]
    for row in values["rows"]:
        assert row["rate"] == STOPPED.base("small", "digits").optimizer.learning_rate
        assert row["validation_errors_by_rate"] == {}
        (run,) = row["runs"]
        stop, cells = run["training"]["stopped"], dict(zip(values["heads"], row["cells"], strict=True))
        assert ("not reached" in cells["error, ours %"]) == (not stop["reached"])
        assert cells["rank"] == "–"


@pytest.mark.usefixtures("tiny")
def test_a_row_that_diverges_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "FACTORS", (1.0,))

    def diverge(recipe, *arguments, **options):
        from capsella.training import TrainingDivergedError

        if recipe.model.name == "league_pooling":
            raise TrainingDivergedError("loss: not a number")
        return train(recipe, *arguments, **options)

    from capsella.grid.run import train

    monkeypatch.setattr("capsella.grid.run.train", diverge)
    values = League("small", ((DIGITS, "digits"),)).run(tmp_path, (0,), "c", QUIET)
    assert [row["cells"][3] for row in values["rows"]][1] == "diverged"
    assert values["rows"][0]["cells"][3] != "diverged"
    assert values["rows"][1]["validation_errors_by_rate"] == {"0.001": ["diverged"] * search.SPLITS}


@pytest.mark.usefixtures("tiny")
def test_a_seed_that_diverges_stands_in_the_cell_and_takes_the_rank(tmp_path, monkeypatch):
    from capsella.grid.run import train
    from capsella.training import TrainingDivergedError

    def diverge(recipe, *arguments, **options):
        if recipe.model.name == "league_pooling" and recipe.seed == 1:
            raise TrainingDivergedError("loss: not a number")
        return train(recipe, *arguments, **options)

    def parted(hits):
        assert len(hits) == 1
        return dict.fromkeys(hits, "1")

    monkeypatch.setattr(search, "FACTORS", (1.0,))
    monkeypatch.setattr("capsella.grid.run.train", diverge)
    monkeypatch.setattr(table, "ranks", parted)
    values = League("small", ((DIGITS, "digits"),)).run(tmp_path, (0, 1, 2), "c", QUIET)
    rows = sorted(values["rows"], key=lambda row: row["label"], reverse=True)
    assert [row["diverged_seeds"] for row in rows] == [[], [1]]
    assert [row["cells"][4] for row in rows] == ["1", "–"]
    assert [row["gain_over_even"] for row in rows] == [None, None]
    assert rows[1]["cells"][3].endswith("(1 of 3 seeds diverged)")
    assert "diverged" not in rows[0]["cells"][3]


@pytest.mark.usefixtures("tiny")
def test_images_that_are_missing_show_before_the_first_training(tmp_path, monkeypatch):
    def missing(data):
        raise CapsellaError("the others are not there")

    monkeypatch.setattr("capsella.grid.run.train", None)
    field = dataclasses.replace(DIGITS, changed=Changed("others", missing))
    with pytest.raises(CapsellaError, match="the others are not there"):
        League("small", ((field, "digits"),)).run(tmp_path, (0,), "c", QUIET)


def test_counting_memory_leaves_the_network_as_it_was():
    recipe = tiny_recipe()
    model = recipe.model.create(16, 1, ("a", "b")).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    measure.step_memory_mib(model, recipe)
    assert not model.training
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_memory_of_a_step_by_hand():
    """A wider last convolution keeps so many maps more."""
    recipe = tiny_recipe()
    narrow, wide = (
        dataclasses.replace(recipe, model=ModelOptions("league_pooling", {"width": width})) for width in (8, 64)
    )
    sizes = [measure.step_memory_mib(one.model.create(16, 1, ("a", "b")), one) for one in (narrow, wide)]
    # The last convolution's output and its normalisation: 4×4 sites, twice, of 56 maps more, and their ReLU.
    more = (sizes[1] - sizes[0]) * 2**20 / (measure.STEP_IMAGES * 56 * 16 * 4)
    assert 2 <= more <= 4


@pytest.mark.usefixtures("tiny")
def test_what_routing_gains_over_even_couplings(tmp_path, monkeypatch):
    """Hits image by image, of the row and of its twin; more than 0 where routing errs less."""
    monkeypatch.setattr(fields, "ROUTINGS", {"heinsen": ROUTINGS["heinsen"]})
    monkeypatch.setattr(fields, "OTHERS", {})
    monkeypatch.setattr(search, "FACTORS", (1.0,))
    values = League("small", ((DIGITS, "digits"),)).run(tmp_path, (0, 1), "c", QUIET)
    routed, even = sorted(values["rows"], key=lambda row: row["label"][1])
    assert [row["label"][1] for row in (routed, even)] == ["heinsen", "heinsen, even"]
    errors = [row["error"]["error_percent"] for row in values["rows"]]
    assert errors == sorted(errors)
    hits = [np.stack([hits_of(run["test"]) for run in row["runs"]]).mean(0) for row in (routed, even)]
    assert routed["gain_over_even"]["points"] == pytest.approx(100 * (hits[0] - hits[1]).mean())
    low, high = routed["gain_over_even"]["interval_95_points"]
    assert low <= routed["gain_over_even"]["points"] <= high
    assert even["gain_over_even"] is None
    cells = dict(zip(values["heads"], routed["cells"], strict=True))
    assert cells["gain over even, points"] == f"{routed['gain_over_even']['points']:.2f} [{low:.1f}, {high:.1f}]"
    assert dict(zip(values["heads"], even["cells"], strict=True))["entropy"] == "1.000, 1.000"
    assert routed["gain_over_even"]["detectable_points"] > 0


@pytest.mark.usefixtures("tiny")
def test_gains_over_even_couplings_are_at_the_rate_of_the_row(tmp_path, monkeypatch):
    """The even row stands in the table at the rate that it chose; the gain is over that network at the routed row's."""
    monkeypatch.setattr(fields, "ROUTINGS", {"heinsen": ROUTINGS["heinsen"]})
    monkeypatch.setattr(fields, "OTHERS", {})

    def chosen(rows, seed, grid):
        rates = {row.slug: search.rate_at(row.recipe, 1.0 if row.even else 3.0) for row in rows}
        return [search.Chosen({}, rates[row.slug], search.whole(row, rates[row.slug])) for row in rows]

    monkeypatch.setattr(table, "choose_rates", chosen)
    values = League("small", ((DIGITS, "digits"),)).run(tmp_path, (0, 1), "c", QUIET)
    routed, even = sorted(values["rows"], key=lambda row: row["label"][1])
    assert {run["recipe"]["optimizer"]["learning_rate"] for run in routed["even_runs"]} == {routed["rate"]}
    assert {run["recipe"]["optimizer"]["learning_rate"] for run in even["runs"]} == {3 * routed["rate"]}
    assert [run["recipe"]["model"] for run in routed["even_runs"]] == [run["recipe"]["model"] for run in even["runs"]]
    own, its = (np.stack([hits_of(run["test"]) for run in routed[key]]).mean(0) for key in ("runs", "even_runs"))
    assert routed["gain_over_even"]["points"] == pytest.approx(100 * (own - its).mean())


@pytest.mark.parametrize(("error", "reached"), [(99.0, True), (0.0, False)])
@pytest.mark.usefixtures("tiny")
def test_networks_that_stop_at_one_error_gain_on_changed_images(tmp_path, monkeypatch, error, reached):
    monkeypatch.setattr(fields, "ROUTINGS", {"heinsen": ROUTINGS["heinsen"]})
    monkeypatch.setattr(fields, "OTHERS", {"CNN": "league_cnn"})
    monkeypatch.setitem(fields.STOPS, "small", error)
    rows = League("small", ((STOPPED, "digits"),)).run(tmp_path, (0, 1), "c", QUIET)["rows"]
    routed, even, cnn = (next(row for row in rows if row["label"][1] == name) for name in NAMES)
    if not reached:
        assert [row[gain] for row in rows for gain in ("gain_over_even", "gain_over_cnn")] == [None] * 6
        return
    errors = [row["changed_error"]["error_percent"] for row in rows]
    assert errors == sorted(errors)
    hits = [np.stack([hits_of(test) for test in row["changed"]]).mean(0) for row in (routed, even, cnn)]
    assert routed["gain_over_even"]["points"] == pytest.approx(100 * (hits[0] - hits[1]).mean())
    assert routed["gain_over_cnn"]["points"] == pytest.approx(100 * (hits[0] - hits[2]).mean())
    assert even["gain_over_cnn"]["points"] == pytest.approx(100 * (hits[1] - hits[2]).mean())
    assert even["gain_over_even"] is None
    assert cnn["gain_over_cnn"] is None
