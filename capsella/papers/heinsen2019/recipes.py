"""The recipe of Heinsen 2019: smallNORB at full size."""

from capsella.data import DataOptions
from capsella.losses import LossOptions
from capsella.routing import HeinsenRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe


@register_recipe
def heinsen2019_smallnorb() -> Recipe:
    """Heinsen routing on smallNORB, nearly as its author trained it (his code).

    Both cameras at 96×96, shifted by up to 16 pixels with the border repeated, mixed in pairs (mixup). Cross-entropy
    of the scores. A learning rate that rises to 0.0005 over a tenth of 50 epochs and falls over half a cosine. Batches
    of 20. He takes RAdam, here Adam. He validates on the test's toys. Here one in twenty training images of each class
    is held out, and the last epoch is kept.
    """
    return Recipe(
        model=ModelOptions("heinsen2019_capsnet", {"routing": HeinsenRouting()}),
        data=DataOptions(name="smallnorb", camera="both", validation=0.05),
        augment=AugmentOptions(shift=16, border="repeat", mixup=0.2),
        loss=LossOptions(name="cross_entropy"),
        optimizer=OptimizerOptions(learning_rate=5e-4, schedule="cosine", warmup_steps=5770),
        epochs=50,
        batch_size=20,
        keep="last",
    )
