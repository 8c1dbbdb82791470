"""A league on a few digits."""

import dataclasses

from capsella.data import load_data
from capsella.grid import Budget
from capsella.papers.league.fields import Changed, Field
from capsella.training import ModelOptions
from capsella.training.registry import get_recipe
from tests.papers.tiny import CAPSNET

TINY = Budget(epochs=2, epoch_images=32, batch_size=16, validation_per_class=1, test_per_class=2, ema=0.9)


def changed(data):
    splits = load_data(dataclasses.replace(data, split_seed=1))
    return "digits again", splits.test


DIGITS = Field("digits", "league-tiny", ("digits",), Changed("others", changed), budgets={"small": TINY})


def tiny_recipe():
    """A network of two rows on digits."""
    return dataclasses.replace(
        CAPSNET, model=ModelOptions("league_capsnet", {"parameters": 80_000}), loss=get_recipe("league-digits").loss
    )
