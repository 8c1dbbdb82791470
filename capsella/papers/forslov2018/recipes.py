"""The recipes of Forslöv's thesis (2018), of its networks in few steps, and of a CNN of today beside them."""

from dataclasses import replace
from typing import Any

from capsella.data import DataOptions
from capsella.losses import LossOptions
from capsella.routing import DynamicRouting, EMRouting
from capsella.training.recipe import AugmentOptions, OptimizerOptions, Recipe

# Forslöv's thesis 2018, §8: batches of 5, 100,000 steps (333 passes over the 1,503 images), Adam with exponential decay
# and L2, no augmentation of training images, reconstruction 0.392 times the mean. §10.6: dynamic routing does best on
# small sets, with the decoder. The text gives a learning rate for EM alone (Fig. 34); the others, the decay and the
# weight of L2 are ours, not tuned.
FORSLOV_OPTIMIZER = OptimizerOptions(learning_rate=1e-4, l2=1e-6)
FORSLOV_CAPSNET = Recipe(
    model={"name": "forslov2018_capsnet1_init1", "routing": DynamicRouting(iterations=3), "reconstruction": True},
    data=DataOptions(name="pbc", size=224, channels=3),
    loss=LossOptions(name="margin", reconstruction="mean", reconstruction_weight=0.392),
    optimizer=FORSLOV_OPTIMIZER,
    epochs=333,
    batch_size=5,
)
# §8.2.3: the margin rises by 0.1 every 3,000 steps.
FORSLOV_EMNET = replace(
    FORSLOV_CAPSNET,
    model={"name": "forslov2018_emnet1_init1", "reconstruction": False},
    loss=replace(FORSLOV_CAPSNET.loss, name="spread", spread_schedule="stairs"),
    optimizer=replace(FORSLOV_OPTIMIZER, learning_rate=3e-4),
)
FORSLOV_CNN = replace(
    FORSLOV_CAPSNET,
    model={"name": "forslov2018_cnnnet1_init1", "dropout": 0.5},
    loss=LossOptions(name="cross_entropy"),
)
FORSLOV = {
    f"forslov2018-{net}-init{init}": replace(recipe, model={**recipe.model, "name": f"forslov2018_{net}_init{init}"})
    for recipe, nets in (
        (FORSLOV_CAPSNET, ("capsnet1", "capsnet2")),
        (FORSLOV_EMNET, ("emnet1", "emnet2")),
        (FORSLOV_CNN, ("cnnnet1", "cnnnet2", "cnnnet3")),
    )
    for net in nets
    for init in (1, 2)
}

# Ours, for few steps: batch normalisation, first weights that give class capsules a middling length, costs of EM that
# are scaled instead of standardised, no dropout, larger batches, mirrored images, a rate that falls to a tenth; each
# chosen by validation on pbc (LOG.md, L010 and L012).
MODERN: dict[str, tuple[float, dict[str, Any]]] = {
    "capsnet1": (3e-4, {"he_primary": True, "class_weight_sd": 0.01}),
    "capsnet2": (3e-4, {"he_primary": True, "conv_weight_sd": 0.3}),
    **dict.fromkeys(
        ("emnet1", "emnet2"), (1e-3, {"routing": EMRouting(iterations=2, competition="types", cost_scale=100.0)})
    ),
    **dict.fromkeys(("cnnnet1", "cnnnet2", "cnnnet3"), (3e-4, {"dropout": 0.0})),
}


def _modern(name: str, recipe: Recipe) -> Recipe:
    learning_rate, options = MODERN[name.split("-")[1]]
    model = {**recipe.model, "batch_norm": True, **options}
    if "reconstruction" in model:
        model["reconstruction"] = False
    return replace(
        recipe,
        model=model,
        augment=AugmentOptions(flip=True),
        loss=replace(recipe.loss, spread_schedule="linear"),
        optimizer=OptimizerOptions(learning_rate=learning_rate, decay=0.1, decay_steps=2500, gradient_clip=10.0),
        epochs=20,
        batch_size=10,
    )


FORSLOV |= {f"{name}-modern": _modern(name, recipe) for name, recipe in FORSLOV.items()}

# A CNN of today with as many parameters as EM-NET 1, on the same images and as many of them as the modern recipes: the
# rate falls over half a cosine, as is usual for it (not tuned).
HE_CELLS = replace(
    FORSLOV["forslov2018-cnnnet3-init1-modern"],
    model={"name": "he2016_resnet10"},
    optimizer=OptimizerOptions(learning_rate=1e-3, schedule="cosine", warmup_steps=100),
    batch_size=16,
)
