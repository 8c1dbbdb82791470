"""The recipe of Ribeiro, Leontidis, Kollias 2020: variational Bayes routing on smallNORB, as its authors trained it."""

from capsella.data import DataOptions
from capsella.losses import LossOptions
from capsella.routing import VariationalRouting
from capsella.training import ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe


@register_recipe
def ribeiro2020_smallnorb() -> Recipe:
    """Variational Bayes routing on smallNORB, as its authors trained it (their code).

    Both cameras at 48×48, random cuts of 32×32 and no other change; cross-entropy of the activations; Adam at 0.001
    throughout, 300 epochs in batches of 128. As there, one in five training images of each class is for validation, and
    couplings are those of the code.
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
