"""The recipes of Ribeiro, Leontidis, Kollias 2020: variational Bayes routing on smallNORB, as they had it, and ours."""

from dataclasses import replace

from capsella.data import DataOptions
from capsella.losses import LossOptions
from capsella.papers.hinton2018.recipes import MOVED_AND_MIXED
from capsella.routing import VariationalRouting
from capsella.training import ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe

WIDE = 0.01
"""Ψ₀ of the wide prior: it expects votes with a standard deviation of 2.4 an element, for 16 of them; the paper's, 0.24
(LOG.md, L065)."""


@register_recipe
def ribeiro2020_smallnorb() -> Recipe:
    """Variational Bayes routing on smallNORB, as its authors trained it (their code).

    Both cameras at 48×48, random cuts of 32×32 and no other change. Both are standardised together; there each camera
    is by itself. Cross-entropy of the activations; Adam at 0.001 throughout, 300 epochs in batches of 128. As there,
    one in five training images of each class is for validation, and couplings are those of the code.
    """
    options = {"routing": VariationalRouting(proportions=False, bias=False), "crop": 32}
    return Recipe(
        model=ModelOptions("ribeiro2020_capsnet", options),
        data=DataOptions(name="smallnorb", size=48, camera="both", validation=0.2),
        loss=LossOptions(name="cross_entropy"),
        optimizer=OptimizerOptions(learning_rate=1e-3, decay=1.0),
        epochs=300,
        batch_size=128,
    )


@register_recipe
def ribeiro2020_smallnorb_best() -> Recipe:
    """Variational Bayes routing on smallNORB in an hour of one core; ours.

    A wide prior, so that couplings do not harden before the votes mean anything (LOG.md, L065). Images turn, stretch,
    and are mixed in pairs; the rate falls along a cosine, and weights are averaged. All five toys train.
    """
    authors = ribeiro2020_smallnorb()
    return replace(
        authors.with_model(routing=VariationalRouting(proportions=False, bias=False, precision=WIDE)),
        data=replace(authors.data, group=None, validation=0.02),
        augment=MOVED_AND_MIXED,
        optimizer=replace(authors.optimizer, learning_rate=3e-3, schedule="cosine", ema=0.999),
        epochs=12,
        batch_size=32,
        keep="last",
    )
