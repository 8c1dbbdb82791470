"""`capsella calibrate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from capsella.cli.screen import console
from capsella.training import calibrate_run
from capsella.uncertainty import FALSE_POSITIVE_RATE, images_for_rate


@dataclass(frozen=True)
class Calibrate:
    """Fit calibrated probabilities and OOD detection for a run.

    They are written to calibration.json and ood_detector.safetensors.

    Every training ends with this; use it after changing the weights.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""


def run(arguments: list[str]) -> None:
    """Fit, write and print."""
    options = tyro.cli(Calibrate, args=arguments, prog="capsella calibrate")
    fitted, detector = calibrate_run(options.run)
    lines = [
        f"temperature {fitted.temperature:.3f} of {fitted.logits} activations, on {fitted.images} validation images",
        f"loss {fitted.nll_before:.4f} → {fitted.nll:.4f} nats, "
        f"expected calibration error {fitted.ece_before:.4f} → {fitted.ece:.4f}, on the same images",
        f"OOD scores: {', '.join(detector.scores)}, on {detector.images} validation images",
        *_too_few(detector.images),
        f"written to {options.run / 'calibration.json'} and {options.run / 'ood_detector.safetensors'}",
    ]
    console().print(*lines, sep="\n", soft_wrap=True, markup=False)


def _too_few(images: int) -> list[str]:
    needed = images_for_rate(FALSE_POSITIVE_RATE)
    return [f"too few to flag any image: that needs {needed} validation images"] if images < needed else []
