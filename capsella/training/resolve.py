"""Resolve "auto" for a machine, or as a run did when it began. For `balance` see `capsella.training.balance`."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pooch
import torch
from torch import nn

from capsella import _native
from capsella.environment import processor
from capsella.errors import CapsellaError
from capsella.files import read_json, write_json
from capsella.routing import EMRouting
from capsella.training.config import ComputeOptions, ResolvedPrecision
from capsella.training.recipe import Recipe

CLEARLY_FASTER = 1.2  # bfloat16 over float32: a smaller gain is not worth the lower precision
ROUNDS = 5
MEMORY = Path(pooch.os_cache("capsella")) / "precision.json"  # measured ratios by processor, PyTorch and threads


def resolve_accelerator(accelerator: str) -> str:
    """Return the accelerator, with "auto" resolved to "cuda" if there is a CUDA GPU, else to "cpu".

    Apple's GPU is not used: it has no float64, in which error rates and scores are computed.
    """
    if accelerator != "auto":
        return accelerator
    return "cuda" if torch.cuda.is_available() else "cpu"


def choose_precision(accelerator: str) -> tuple[ResolvedPrecision, str]:
    """Return the precision that "auto" means on this machine, and the reason.

    On a GPU it follows from the hardware. On a CPU, where bfloat16 may be emulated at a twentieth of the speed of
    float32, it is measured once and remembered in the user's cache folder.
    """
    if resolve_accelerator(accelerator) == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16-mixed" if fast else "32-true"), f"the GPU has {'' if fast else 'no '}bfloat16 units"
    key = f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    try:
        known = {name: float(ratio) for name, ratio in read_json(MEMORY).items()}
    except (CapsellaError, AttributeError, TypeError, ValueError):  # missing or damaged
        known = {}
    if key not in known:
        known[key] = round(measure_ratio(), 3)
        with suppress(OSError, CapsellaError):  # a cache that cannot be written is measured again
            write_json(MEMORY, known)
    why = f"bfloat16 is {known[key]:.2g} times as fast as float32 here (measured once)"
    return ("bf16-mixed" if known[key] >= CLEARLY_FASTER else "32-true"), why


def measure_ratio() -> float:
    """Return how many times as fast bfloat16 is as float32, on a convolution and a matrix product; takes seconds."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        # CapsNet's second convolution with half of its inputs, and a layer of its decoder. With fewer than 16 images, a
        # processor may take another algorithm.
        convolution, images = nn.Conv2d(128, 256, 9, stride=2), torch.randn(16, 128, 20, 20)
        dense, vectors = nn.Linear(512, 1024), torch.randn(128, 512)

        def step(enabled: bool) -> float:
            started = time.perf_counter()
            for layer, inputs in ((convolution, images), (dense, vectors)):
                with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                    output = layer(inputs)
                output.float().square().mean().backward()
            return time.perf_counter() - started

        # Other load on the machine only ever adds time, so take the minimum, without the first call.
        times = [(step(False), step(True)) for _ in range(1 + ROUNDS)]
    return min(plain for plain, _ in times[1:]) / min(bfloat16 for _, bfloat16 in times[1:])


def resolve_auto(recipe: Recipe, compute: ComputeOptions) -> tuple[Recipe, list[str]]:
    """Return the recipe with the precision and votes that "auto" means on this machine, and a line for each choice."""
    choices = []
    if recipe.precision == "auto":
        if compute.threads is not None:  # the ratio depends on them
            torch.set_num_threads(compute.threads)
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

    This concerns "auto" for precision, votes and balance, and the measured value range, cell radius and stain of the
    images.
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
    return recipe.with_measured(begun.data.value_range, begun.data.cut)
