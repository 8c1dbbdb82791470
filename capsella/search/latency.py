"""How long a network takes for one image in its best backend, measured beside a network that is always the same."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from capsella.bench import MAKERS, UnavailableError, latencies
from capsella.data import ImageSet
from capsella.errors import CapsellaError
from capsella.export.graph import with_backend
from capsella.models import ImageClassifier

BACKENDS = ("packed", "onnxruntime")
"""That are tried: PyTorch with packed weights and native kernels, and ONNX Runtime where it is installed; both without
the question whether an image is known, which only a trained network answers.
The others take longer to prepare than to time."""
CALLS, MOST_SECONDS = 100, 1.0
QUIET, ROUNDS = 1.25, 5
"""A round counts where the yardstick took at most so many times its best; so many rounds are tried."""


@dataclass
class Stopwatch:
    """Times networks, each in turn with a yardstick: a small convolution whose best time so far says if it is quiet.

    best: of the yardstick, in milliseconds, also as other workers found it.
    """

    best: float = float("inf")
    _step: Callable[[], Any] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        maps, convolution = torch.rand(1, 32, 28, 28, generator=generator), nn.Conv2d(32, 64, 5).eval()

        def step() -> object:
            with torch.inference_mode():
                return convolution(maps)

        step()
        self._step = step

    def milliseconds(self, model: ImageClassifier, images: ImageSet) -> float:
        """Of one image a call, the median in the best backend; the quietest round counts where none is quiet.

        Times are scaled to the yardstick's best, so that a machine that is busy with other workers does not refuse what
        it would take alone.

        Args:
            model: with fresh weights, or trained ones.
            images: to time on.
        """
        with tempfile.TemporaryDirectory() as folder:
            steps = _steps(model, images, Path(folder))
            found: list[tuple[float, float]] = []
            is_first = self.best == float("inf")  # nothing tells a quiet round from a busy one: all rounds do
            for _ in range(ROUNDS):
                times = latencies({**steps, "yardstick": self._step}, CALLS, most_seconds=MOST_SECONDS)
                yardstick = times.pop("yardstick").p50
                self.best = min(self.best, yardstick)
                found.append((yardstick, min(time.p50 for time in times.values())))
                if yardstick <= QUIET * self.best and not is_first:
                    break
        yardstick, shortest = min(found)
        return shortest * min(1.0, self.best / yardstick)


def _steps(model: ImageClassifier, images: ImageSet, folder: Path) -> dict[str, Callable[[], Any]]:
    """A call of each backend that is here, called before."""
    model = with_backend(model, "eager")
    pixels = images.images[:1].float() / 255
    steps: dict[str, Callable[[], Any]] = {}
    for name in BACKENDS:
        try:
            run = MAKERS[name](model, images, folder)
            run(pixels)
        except (UnavailableError, CapsellaError, ValueError):
            continue
        steps[name] = lambda run=run: run(pixels)  # type: ignore[misc]
    return steps
