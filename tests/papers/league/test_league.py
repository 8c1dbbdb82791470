"""The league: its rows, what they have alike, their ranks, and the memory of a step."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from capsella.grid import Hits, Validated
from capsella.models import count_parameters
from capsella.papers.league import measure, search
from capsella.papers.league.fields import FIELDS, OTHERS, entrants, fields_on
from capsella.papers.league.ranks import ranks
from capsella.papers.league.table import League
from capsella.papers.published import OWN_TABLES
from capsella.routing import ROUTINGS
from capsella.training import ModelOptions
from tests.papers.league.made import DIGITS, tiny_recipe

SHAPES = {"smallnorb": (48, 2, 5), "mnist40": (40, 1, 10), "pbc": (40, 3, 5), "cifar10": (32, 3, 10)}
"""Size, channels and classes of each source; those of smallnorb-jpeg-poses are smallnorb's."""


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
