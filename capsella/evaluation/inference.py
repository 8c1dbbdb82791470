"""How evaluation and explanation run a model: in evaluation mode, without gradients, leaving it as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from capsella.models import ImageClassifier


@contextmanager
def inference(model: ImageClassifier) -> Iterator[torch.device]:
    """Run `model` in evaluation mode and without gradients; yields its device and restores each module's mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield next(model.parameters()).device
    finally:
        for module, training in modes:
            module.training = training


def check_decoder(model: ImageClassifier, purpose: str) -> None:
    """`model` has a decoder.

    Raises:
        ValueError: it has none; names the `purpose` that needs one.
    """
    if not model.has_decoder:
        raise ValueError(f"model: must have a decoder for {purpose}, got {type(model).__name__} without one")
