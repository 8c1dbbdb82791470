"""Recipes of Forslöv's thesis (2018), our shorter ones for the same networks, and one for a recent CNN.

In the thesis (§8 to §10): batches of 5, 100,000 steps (333 passes over the 1,503 images), Adam with exponential decay
and L2, no augmentation. It states a learning rate for EM only (Figure 34). The other rates, the decay and the L2 weight
are ours, not tuned; so is the reconstruction weight of 0.392 times the mean, which §6.4.3 quotes from Sabour et al.
2017, whose images have 784 pixels.
"""

from dataclasses import replace

from capsella.data import NamedData
from capsella.losses import LossOptions
from capsella.routing import DynamicRouting, EMRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe, register_recipe_for

CAPSNETS, EMNETS, CNNNETS = (
    tuple(f"forslov2018_{kind}{number}_init{init}" for number in range(1, most + 1) for init in (1, 2))
    for kind, most in (("capsnet", 2), ("emnet", 2), ("cnnnet", 3))
)


@register_recipe_for(CAPSNETS)
def capsnet(network: str) -> Recipe:
    """A CAPSNET on cells of 224×224, as in the thesis; with a decoder, which helps dynamic routing (§10.6)."""
    return Recipe(
        model=ModelOptions(network, {"routing": DynamicRouting(iterations=3), "reconstruction": True}),
        data=NamedData("pbc-subset", size=224, channels=3),
        loss=LossOptions(name="margin", reconstruction="mean", reconstruction_weight=0.392),
        optimizer=OptimizerOptions(learning_rate=1e-4, l2=1e-6),
        epochs=333,
        batch_size=5,
    )


@register_recipe_for(EMNETS)
def emnet(network: str) -> Recipe:
    """An EM-NET on the same cells, as in the thesis; the margin rises by 0.1 every 3,000 steps (§8.2.3)."""
    recipe = capsnet(network)
    return replace(
        recipe,
        model=ModelOptions(network, {"reconstruction": False}),
        loss=replace(recipe.loss, name="spread", spread_schedule="stairs"),
        optimizer=replace(recipe.optimizer, learning_rate=3e-4),
    )


@register_recipe_for(CNNNETS)
def cnnnet(network: str) -> Recipe:
    """A CNN-NET on the same cells, as in the thesis."""
    model = ModelOptions(network, {"dropout": 0.5})
    return replace(capsnet(network), model=model, loss=LossOptions(name="cross_entropy"))


@register_recipe_for(CAPSNETS[:2], "-modern")
def capsnet1_modern(network: str) -> Recipe:
    """CAPSNET 1 in few steps; our recipe. Class capsules start with a medium length; no decoder."""
    recipe = capsnet(network).with_model(he_primary=True, class_weight_sd=0.01, reconstruction=False)
    return _in_few_steps(recipe, 3e-4)


@register_recipe_for(CAPSNETS[2:], "-modern")
def capsnet2_modern(network: str) -> Recipe:
    """CAPSNET 2 in few steps; our recipe. Class capsules start with a medium length; no decoder."""
    return _in_few_steps(capsnet(network).with_model(he_primary=True, conv_weight_sd=0.3, reconstruction=False), 3e-4)


@register_recipe_for(EMNETS, "-modern")
def emnet_modern(network: str) -> Recipe:
    """An EM-NET in few steps; our recipe. Costs are scaled instead of standardised; two iterations."""
    routing = EMRouting(iterations=2, competition="types", cost_scale=100.0)
    return _in_few_steps(emnet(network).with_model(routing=routing), 1e-3)


@register_recipe_for(CNNNETS, "-modern")
def cnnnet_modern(network: str) -> Recipe:
    """A CNN-NET in few steps, without dropout; our recipe."""
    return _in_few_steps(cnnnet(network).with_model(dropout=0.0), 3e-4)


@register_recipe
def he2016_cells() -> Recipe:
    """A residual network with as many parameters as EM-NET 1, trained on as many of the same images; our recipe."""
    return replace(
        cnnnet_modern("forslov2018_cnnnet3_init1"),
        model=ModelOptions("he2016_resnet10"),
        optimizer=OptimizerOptions(learning_rate=1e-3, schedule="cosine", warmup_steps=100),
        batch_size=16,
    )


@register_recipe
def emnet_cells() -> Recipe:
    """A smaller EM-NET 1 (130 K parameters), found by `capsella search` with a limit of 8 ms per image."""
    routing = EMRouting(
        iterations=3,
        inverse_temperature=0.004889325850633608,
        variance_floor=0.0002663494911243649,
        competition="types",
        cost_scale=100.0,
    )
    sizes = {"stem_width": 16, "front_width": 48, "caps_width": 16, "kernel": 9, "types": 16, "pose_elements": 9}
    recipe = emnet_modern("forslov2018_emnet1_init1").with_model(routing=routing, **sizes)
    return replace(
        recipe,
        data=replace(recipe.data, validation=0.05),
        augment=replace(recipe.augment, rotation=180.0),
        optimizer=replace(recipe.optimizer, learning_rate=0.0014400037799644169, schedule="cosine", ema=0.98),
        epochs=60,
        batch_size=32,
        keep="last",
    )


def _in_few_steps(recipe: Recipe, learning_rate: float) -> Recipe:
    """Return the recipe with batch normalisation, larger batches, flips, and a learning rate that falls to a tenth.

    Each change was chosen by validation on pbc-subset.
    """
    return replace(
        recipe.with_model(batch_norm=True),
        augment=AugmentOptions(flip=True),
        loss=replace(recipe.loss, spread_schedule="linear"),
        optimizer=OptimizerOptions(learning_rate=learning_rate, decay=0.1, decay_steps=2500, gradient_clip=10.0),
        epochs=20,
        batch_size=10,
    )
