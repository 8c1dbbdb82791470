"""Hahn, Pyeon, Kim 2019, "Self-Routing Capsule Networks": recipes as in the authors' code, and tables.

All use −ln of the true class's activation as the loss, which is the cross-entropy of the activations' logarithms.
"""

from dataclasses import replace
from typing import Literal

from capsella.data import NamedData
from capsella.losses import LossOptions
from capsella.papers.budget import BudgetName, step_decay
from capsella.papers.table_types import PHOTOGRAPHS, ErrorTable, RowSpec, error_table
from capsella.routing import DynamicRouting, EMRouting, SelfRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe, register_recipe_for

VIEWS = ("hahn2019_azimuth", "hahn2019_elevation")


@register_recipe
def hahn2019_cifar10() -> Recipe:
    """Self-routing behind ResNet-20 on CIFAR-10, two capsule layers."""
    return Recipe(
        model=ModelOptions("hahn2019_resnet20"),
        data=NamedData("cifar10"),
        augment=AugmentOptions(shift=4, mirror=True),
        loss=LossOptions(name="cross_entropy"),
        optimizer=step_decay(1e-4, 150 / 350, 250 / 350),
        epochs=350,
        batch_size=64,
    )


@register_recipe
def hahn2019_cifar10_dynamic() -> Recipe:
    """The same network with dynamic routing."""
    return hahn2019_cifar10().with_model(routing=DynamicRouting(iterations=3))


@register_recipe
def hahn2019_cifar10_em() -> Recipe:
    """The same network with EM routing, but with vector poses where the authors have 4×4 matrices."""
    return hahn2019_cifar10().with_model(routing=EMRouting(iterations=3, competition="types"))


@register_recipe
def hahn2019_cifar10_cnn() -> Recipe:
    """ResNet-20 with average pooling instead of capsules, trained the same way."""
    return replace(hahn2019_cifar10(), model=ModelOptions("hahn2019_resnet20_cnn"))


@register_recipe_for(VIEWS)
def viewpoints_recipe(name: str) -> Recipe:
    """Self-routing on a third of smallNORB's azimuths or elevations, tested on the others.

    The authors use both cameras, and keep the epoch with the lowest error on the novel viewpoints; here only the left
    camera is used, and held-out training images choose the epoch.
    """
    by: Literal["azimuth", "elevation"] = "azimuth" if name.endswith("azimuth") else "elevation"
    data = NamedData("smallnorb", size=48, viewpoints=by, test_viewpoints="novel")
    return replace(hahn2019_smallnorb(), data=data)


@register_recipe_for(VIEWS, "-cnn")
def viewpoints_cnn_recipe(name: str) -> Recipe:
    """The same convolutions with average pooling instead of capsules."""
    recipe = viewpoints_recipe(name)
    return replace(recipe, model=ModelOptions("hahn2019_convnet_cnn", recipe.model.options))


@register_recipe
def hahn2019_smallnorb() -> Recipe:
    """Self-routing on all viewpoints of smallNORB, trained as on a third of them; the poster has no error for it."""
    options = {"crop": 32, "brightness": 32 / 255, "contrast": 0.3}
    return Recipe(
        model=ModelOptions("hahn2019_convnet", options),
        data=NamedData("smallnorb", size=48, group="instance", validation=0.2),
        loss=LossOptions(name="cross_entropy"),
        optimizer=step_decay(1e-4, 0.5, 0.75),
        epochs=200,
        batch_size=64,
    )


# SGD leaves uniform couplings only after hundreds of steps, so the small budget uses Adam.
BUDGETS = replace(PHOTOGRAPHS, small_optimizer=OptimizerOptions(learning_rate=3e-3, warmup_steps=10))
# Test errors in per cent, from the poster in the authors' repository.
CIFAR10 = tuple(
    RowSpec(label.replace(" ", "-"), f"hahn2019-cifar10{suffix}", (label,), error)
    for label, suffix, error in (
        *(("self", "", 7.86), ("dynamic", "-dynamic", 7.86)),
        *(("em", "-em", 12.52), ("average pooling", "-cnn", 7.94)),
    )
)
ROUTINGS = {"self": SelfRouting(), "dynamic": DynamicRouting(), "em": EMRouting()}
VIEWPOINTS = tuple(
    RowSpec(f"{by}-{name}", f"hahn2019-{by}", (by, name), error, None, {"model.routing": ROUTINGS[name]})
    if name in ROUTINGS
    else RowSpec(f"{by}-average-pooling", f"hahn2019-{by}-cnn", (by, name), error)
    for by, errors in (("azimuth", (19.9, 20.3, 20.2, 21.8)), ("elevation", (15.9, 16.4, 17.5, 17.7)))
    for name, error in zip((*ROUTINGS, "average pooling"), errors, strict=True)
)


def cifar10(budget: BudgetName) -> ErrorTable:
    """Return the CIFAR-10 table: ResNet-20 with each routing, or with average pooling instead of capsules."""
    note = "Published: the poster. Dynamic and EM routing stand in the network of self-routing."
    return error_table("Hahn et al. 2019: CIFAR-10", note, ("routing",), CIFAR10, BUDGETS, budget)


def viewpoints(budget: BudgetName) -> ErrorTable:
    """Return the smallNORB table: trained on a third of the azimuths or elevations, tested on the others."""
    note = "Errors on novel viewpoints. Published: the poster. All rows have the cross-entropy."
    columns = ("viewpoints by", "routing")
    return error_table("Hahn et al. 2019: novel viewpoints", note, columns, VIEWPOINTS, BUDGETS, budget)
