"""The budgets of the papers' tables: what a night changes, it changes for every row of a table alike."""

import pytest

from capsella.grid import Budget
from capsella.papers.forslov2018.runs import ThesisRuns
from capsella.papers.published import TABLES

TRAINED = [name for name in TABLES if not name.startswith("forslov2018")]


def schedule(recipe):
    """What a budget decides of a training."""
    optimizer = recipe.optimizer
    return (
        *(recipe.epochs, recipe.epoch_images, recipe.batch_size, recipe.precision, recipe.keep, recipe.stop_at_error),
        *(optimizer.schedule, optimizer.warmup_steps, optimizer.ema),
    )


def rows(name):
    return TABLES[name]("night").trainings()


@pytest.mark.parametrize("name", TRAINED)
def test_a_night_trains_the_rows_of_a_table_alike(name):
    found = {}
    for row in rows(name):
        stops = row.recipe.stop_at_error  # viewpoints stop at the paper's two errors
        found.setdefault((row.recipe.data.is_paired, stops), set()).add(schedule(row.recipe))
    assert all(len(schedules) == 1 for schedules in found.values()), found
    assert {row.recipe.precision for row in rows(name)} == {"auto"}


@pytest.mark.parametrize("name", TRAINED)
def test_a_short_training_is_no_warm_up(name):
    """At least half of the steps of the small budget have the whole learning rate."""
    for row in TABLES[name]("small").trainings():
        recipe, classes = row.recipe, 5 if "norb" in row.recipe.data.name else 10
        images = recipe.epoch_images or classes * recipe.data.per_class
        assert 2 * recipe.optimizer.warmup_steps <= recipe.epochs * images // recipe.batch_size, row.slug


def test_a_night_trains_the_thesiss_networks_alike():
    runs = ThesisRuns("night", "pbc")
    found = runs.grid(runs.sets)
    assert len(found) == 21
    assert {schedule(row.recipe)[:4] for row in found} == {(20, 800, 10, "auto")}
    assert all(row.recipe_name.endswith("-init1-modern") for row in found)


@pytest.mark.parametrize("name", TRAINED)
def test_a_night_is_longer_than_the_small_budget_and_says_so(name):
    def seen(budget):
        return {
            row.slug: row.recipe.epochs * (row.recipe.epoch_images or row.recipe.data.per_class or 0)
            for row in TABLES[name](budget).trainings()
        }

    night, small = seen("night"), seen("small")
    for slug, images in night.items():  # a night may have a row at a second learning rate, too
        assert images > 5 * small[slug.partition("-rate")[0]]
    assert "batches of" in TABLES[name]("night").note


def test_a_cosine_counts_its_steps():
    budget = Budget(epochs=4, epoch_images=1000, batch_size=10, cosine=True, ema=0.99, precision="auto")
    recipe = budget.limit(rows("hinton2018-1")[0].recipe)
    assert (recipe.optimizer.schedule, recipe.optimizer.warmup_steps, recipe.keep) == ("cosine", 8, "last")
    assert str(budget).endswith(
        "the rate falls to nothing along a cosine after a short warm-up, the last epoch is kept, averaged weights "
        "(0.99), bfloat16 where the machine is faster with it"
    )
    with pytest.raises(ValueError, match="epoch_images: must be given with cosine and decays_once, got None"):
        Budget(epochs=4, batch_size=10, cosine=True)
