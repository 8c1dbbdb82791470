"""Run a model once for its output and for the scores of out-of-distribution detection."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsella.errors import CapsellaError
from capsella.models.base import ImageClassifier
from capsella.models.inference import without_decoder
from capsella.types import Output
from capsella.uncertainty.ood import (
    OODDetector,
    low_level_features,
    map_statistics,
    reconstruction_score,
    rotation_score,
)


def extract(
    model: ImageClassifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"] | None = None,
    *,
    rotate: bool = False,
) -> tuple[Output, dict[str, Tensor]]:
    """Return the model's output, and the features and scores that an `OODDetector` is fitted to.

    Args:
        model: model to run.
        images: images to classify.
        labels: the classes whose poses are returned; None takes the predicted ones.
        rotate: also classify the images upside down.

    Returns:
        The output, and by name: the features [b d] "low_level", "features" if the model has feature maps, and "poses"
        if it has class capsules; the scores [b] "reconstruction" if the model decodes, and "rotation" if requested.
    """
    with _last_maps(model) as maps:
        output = model(images) if labels is None else model(images, labels)
    extracted = {"low_level": low_level_features(images)}
    if maps:
        extracted["features"] = map_statistics(maps[-1])
    chosen = output.activations.argmax(1) if labels is None else labels
    if output.capsules is not None:
        at = torch.arange(images.shape[0], device=images.device)
        extracted["poses"] = output.capsules.poses[at, 0, 0, chosen].float()
    if output.reconstruction is not None and output.reconstruction.shape == images.shape:
        extracted["reconstruction"] = reconstruction_score(images, output.reconstruction)
    if rotate:
        rotated = without_decoder(model)(images.flip((2, 3)))
        extracted["rotation"] = rotation_score(output.activations, rotated.activations)
    return output, extracted


def predict_with_scores(
    model: ImageClassifier, images: Float[Tensor, "b c h w"], detector: OODDetector
) -> tuple[Output, Float[Tensor, "b scores"]]:
    """Return the model's output and, normalised, the scores that `detector.scores` names; with gradients if enabled."""
    output, extracted = extract(model, images, rotate="rotation" in detector.scores)
    predicted = output.activations.argmax(1)
    columns = [
        detector.gaussians[name].distance(extracted[name], predicted) if name in detector.gaussians else extracted[name]
        for name in detector.scores
    ]
    return output, detector.normalized_scores(torch.stack(columns, 1))


def without_unused_decoder(model: ImageClassifier, detector: OODDetector | None) -> ImageClassifier:
    """Return `model` itself if the detector needs reconstructions, otherwise without its decoder."""
    return model if detector is not None and "reconstruction" in detector.scores else without_decoder(model)


@contextmanager
def _last_maps(model: ImageClassifier) -> Iterator[list[Tensor]]:
    """Collect the last feature maps of each call, if the model has any."""
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
