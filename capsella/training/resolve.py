"""Resolve "auto" for a machine, or as a run did when it began. For `balance` see `capsella.training.balance`."""

from dataclasses import replace

import torch

from capsella import _native
from capsella.routing import EMRouting
from capsella.training.config import ComputeOptions, ResolvedPrecision
from capsella.training.recipe import Recipe


def resolve_accelerator(accelerator: str) -> str:
    """Return the accelerator, with "auto" resolved to "cuda" if there is a CUDA GPU, else to "cpu".

    Apple's GPU is not used: it has no float64, in which error rates and scores are computed.
    """
    if accelerator != "auto":
        return accelerator
    return "cuda" if torch.cuda.is_available() else "cpu"


def choose_precision(accelerator: str) -> tuple[ResolvedPrecision, str]:
    """Return the precision that "auto" means on this machine, and the reason.

    Without instructions for bfloat16, PyTorch computes the same numbers at half the speed of float32.
    """
    if resolve_accelerator(accelerator) == "cuda":
        fast, unit = torch.cuda.is_bf16_supported(including_emulation=False), "GPU"
    else:
        fast, unit = _native.multiplies_bfloat16(), "processor"
    why = f"the {unit} {'multiplies' if fast else 'does not multiply'} bfloat16"
    return ("bf16-mixed" if fast else "32-true"), why


def resolve_auto(recipe: Recipe, compute: ComputeOptions) -> tuple[Recipe, list[str]]:
    """Return the recipe with the precision and votes that "auto" means on this machine, and a line for each choice."""
    choices = []
    if recipe.precision == "auto":
        precision, why = choose_precision(compute.accelerator)
        recipe = replace(recipe, precision=precision)
        choices.append(f"precision auto → {precision}: {why}")
    routing = recipe.model.complete().options.get("routing")
    if isinstance(routing, EMRouting) and _gains_by_bfloat16_votes(recipe, routing, compute):
        recipe = recipe.with_model(routing=replace(routing, votes="bfloat16"))
        choices.append("votes auto → bfloat16: precision is bf16-mixed, and this processor multiplies bfloat16")
    return recipe, choices


def _gains_by_bfloat16_votes(recipe: Recipe, routing: EMRouting, compute: ComputeOptions) -> bool:
    is_open = routing.votes == "auto" and routing.backend in ("auto", "native") and recipe.precision == "bf16-mixed"
    return is_open and resolve_accelerator(compute.accelerator) == "cpu" and _native.multiplies_bfloat16()


def with_resolved_from(recipe: Recipe, begun: Recipe) -> Recipe:
    """Return the recipe with everything that it leaves open resolved as in the recipe of an existing run.

    This concerns "auto" for precision, votes and balance, and the measured value range and cell radius of the images.
    """
    if recipe.precision == "auto":
        recipe = replace(recipe, precision=begun.precision)
    if recipe.balance == "auto":
        recipe = replace(recipe, balance=begun.balance)
    routing, begun_routing = (each.complete().model.options.get("routing") for each in (recipe, begun))
    if recipe.precision == "bf16-mixed" and isinstance(routing, EMRouting) and isinstance(begun_routing, EMRouting):
        votes = begun_routing.votes if routing.votes == "auto" else routing.votes
        recipe = recipe.with_model(routing=replace(routing, votes=votes))
    if recipe.data.cells != begun.data.cells:
        return recipe  # cropped differently: the measured values do not apply
    return recipe.with_measured(begun.data.value_range, begun.data.cell_radius)
