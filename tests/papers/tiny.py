"""Recipes that the tests of tables train in seconds, on a few of scikit-learn's digits."""

import dataclasses

from rich.console import Console

from capsella.data import NamedData
from capsella.routing import DynamicRouting
from capsella.training import ModelOptions, Recipe

QUIET = Console(quiet=True)
# CapsNet with a tenth of its weights, which take the time: its layers are all there.
NARROW = {"routing": DynamicRouting(iterations=1), "primary_types": 4, "decoder_width": 16}
CAPSNET = Recipe(
    model=ModelOptions("sabour2017_capsnet", NARROW),
    data=NamedData("digits", size=17, per_class=3, validation=0.02, test_per_class=2),
    epochs=1,
    batch_size=15,
)
CNN = dataclasses.replace(
    CAPSNET, model=ModelOptions("hinton2018_cnn"), loss=dataclasses.replace(CAPSNET.loss, name="cross_entropy")
)
