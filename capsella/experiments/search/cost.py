"""The cost of a candidate before it is trained: its parameters and its latency."""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from capsella.bench import MAKERS, UnavailableError, latencies
from capsella.data import ImageSet, Splits, single_images
from capsella.errors import CapsellaError
from capsella.export.graph import with_backend
from capsella.models import ImageClassifier
from capsella.models.base import shipped_parameters
from capsella.training.recipe import Recipe

# PyTorch with packed weights and native kernels, and ONNX Runtime if it is installed. The other backends take longer to
# prepare than to time.
BACKENDS = ("packed", "onnxruntime")
CALLS, MAX_SECONDS = 100, 1.0
ROUNDS = 3  # the best counts: other processes may disturb one


def parameters_of(recipe: Recipe, splits: Splits) -> float:
    """Return the number of parameters of a recipe's network without its decoder."""
    with torch.device("meta"):
        return float(shipped_parameters(recipe.model.create(splits.image_size, splits.channels, splits.classes)))


def latency_of(recipe: Recipe, splits: Splits) -> float:
    """Return the milliseconds per image of a recipe's network, with fresh weights, on this machine."""
    torch.manual_seed(recipe.seed)
    model = recipe.model.create(splits.image_size, splits.channels, splits.classes).eval()
    return measure_latency(model, single_images(splits.train, "latencies"))


def measure_latency(model: ImageClassifier, images: ImageSet) -> float:
    """Return the median milliseconds per image in the fastest backend, the best of a few rounds."""
    model, pixels = with_backend(model, "eager"), images.images[:1].float() / 255
    with tempfile.TemporaryDirectory() as folder:
        steps = {}
        for name in BACKENDS:
            try:
                run = MAKERS[name](model, images, Path(folder))
                run(pixels)
            except (UnavailableError, CapsellaError, ValueError):
                continue
            steps[name] = partial(run, pixels)
        rounds = [latencies(steps, CALLS, max_seconds=MAX_SECONDS) for _ in range(ROUNDS)]
    return min(time.p50 for times in rounds for time in times.values())


def cost_texts(costs: Mapping[str, float]) -> list[str]:
    """Return costs for people."""
    return [f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" for value in costs.values()]
