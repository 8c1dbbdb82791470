"""`capsella calibrate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from capsella.cli.screen import console
from capsella.models.novelty.fitted import REFUSE, images_to_refuse
from capsella.training import calibrate_run


@dataclass(frozen=True)
class Calibrate:
    """Fit calibrated probabilities for a run, and which images it knows.

    They are written to calibration.json and novelty.safetensors.

    Every training ends with this; it is for older runs and changed weights.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""


def run(arguments: list[str]) -> None:
    """Fit, write and print."""
    options = tyro.cli(Calibrate, args=arguments, prog="capsella calibrate")
    fitted, novelty = calibrate_run(options.run)
    lines = [
        f"temperature {fitted.temperature:.3f} of {fitted.logits} activations, on {fitted.images} validation images",
        f"loss {fitted.nll_before:.4f} → {fitted.nll:.4f} nats, "
        f"expected calibration error {fitted.ece_before:.4f} → {fitted.ece:.4f}, on the same images",
        f"an image is known by its {', '.join(novelty.scores)}, beside those of {novelty.images} validation images",
        *_too_few(novelty.images),
        f"written to {options.run / 'calibration.json'} and {options.run / 'novelty.safetensors'}",
    ]
    console().print(*lines, sep="\n", soft_wrap=True, markup=False)


def _too_few(images: int) -> list[str]:
    """A line where `capsella predict` will call no image not known."""
    needed = images_to_refuse(REFUSE)
    return [f"these are too few to call any image not known: that needs {needed}"] if images < needed else []
