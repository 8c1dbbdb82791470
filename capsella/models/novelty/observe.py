"""One forward pass for the answer and for how strange the image is."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsella.errors import CapsellaError
from capsella.models.base import ImageClassifier
from capsella.models.inference import without_decoder
from capsella.models.novelty.fitted import Novelty
from capsella.models.novelty.scores import appearance, change_when_turned, map_statistics, reconstruction_distance
from capsella.types import Output


def observe(
    model: ImageClassifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"] | None = None,
    *,
    turn: bool = False,
) -> tuple[Output, dict[str, Tensor]]:
    """The model's answer, and what its scores of strangeness are taken by.

    Args:
        labels: [b], the classes whose poses are taken; None takes the predicted ones.
        turn: also classify the images upside down.

    Returns:
        The output; and "appearance" [b d], "features" [b d] where the model has feature maps, "poses" [b d] where it
        has class capsules, "reconstruction" [b], the distance to it, where one is drawn, and "turned" [b], how much the
        answer changes, where asked for.
    """
    with _last_maps(model) as maps:
        output = model(images) if labels is None else model(images, labels)
    seen = {"appearance": appearance(images)}
    if maps:
        seen["features"] = map_statistics(maps[-1])
    chosen = output.activations.argmax(1) if labels is None else labels
    if output.capsules is not None:
        seen["poses"] = output.capsules.poses[torch.arange(len(images), device=images.device), 0, 0, chosen].float()
    if output.reconstruction is not None and output.reconstruction.shape == images.shape:
        seen["reconstruction"] = reconstruction_distance(images, output.reconstruction)
    if turn:
        upside_down = without_decoder(model)(images.flip((2, 3)))
        seen["turned"] = change_when_turned(output.activations, upside_down.activations)
    return output, seen


def answer(
    model: ImageClassifier, images: Float[Tensor, "b c h w"], novelty: Novelty
) -> tuple[Output, Float[Tensor, "b scores"]]:
    """The model's answer, and the surprise of each of `novelty.scores`, with gradients where they are asked for."""
    output, seen = observe(model, images, turn=novelty.turns)
    predicted = output.activations.argmax(1)
    columns = [
        novelty.gaussians[name].distance(seen[name], predicted) if name in novelty.gaussians else seen[name]
        for name in novelty.scores
    ]
    return output, novelty.surprises(torch.stack(columns, 1))


def only_as_needed(model: ImageClassifier, novelty: Novelty | None) -> ImageClassifier:
    """`model`, with its decoder only where an image must be drawn to know whether it is known."""
    return model if novelty is not None and novelty.draws else without_decoder(model)


@contextmanager
def _last_maps(model: ImageClassifier) -> Iterator[list[Tensor]]:
    """The feature maps of each call inside, where the model has some."""
    maps: list[Tensor] = []
    try:
        layers = model.feature_layers()
    except CapsellaError:
        yield maps
        return
    last = layers[-1] if isinstance(layers, nn.Sequential) else layers
    hook = last.register_forward_hook(lambda module, inputs, output: maps.append(output))
    try:
        yield maps
    finally:
        hook.remove()
