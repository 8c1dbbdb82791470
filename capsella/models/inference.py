"""How a trained model is asked: in evaluation mode, without gradients, and left as it was."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from capsella.models.base import ImageClassifier


@contextmanager
def evaluation_mode(model: ImageClassifier) -> Iterator[None]:
    """`model` in evaluation mode; the mode of each module is restored."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def inference(model: ImageClassifier) -> Iterator[torch.device]:
    """Run `model` in evaluation mode and without gradients; yields its device and restores each module's mode."""
    with evaluation_mode(model), torch.inference_mode():
        yield device_of(model)


def device_of(model: ImageClassifier) -> torch.device:
    """Where its weights are."""
    return next(model.parameters()).device


def without_decoder(model: ImageClassifier) -> ImageClassifier:
    """`model` for its activations alone: it shares the weights with `model`, but draws nothing."""
    if not model.has_decoder:
        return model
    model = copy.copy(model)  # shares the weights, but not the list of parts
    model._modules = {**model._modules, "decoder": None}
    return model


def check_decoder(model: ImageClassifier, purpose: str) -> None:
    """`model` has a decoder.

    Raises:
        ValueError: it has none; names the `purpose` that needs one.
    """
    if not model.has_decoder:
        raise ValueError(f"model: must have a decoder for {purpose}, got {type(model).__name__} without one")
