"""What a CNN makes of a page's images as they are turned, shifted and scaled, to stand beside the capsule's pose."""

from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from capsella.errors import CapsellaError
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import inference
from capsella.share.arrays import Arrays
from capsella.share.pool import BATCH
from capsella.share.turned import changes_of, turned

MOST_FEATURES = 16
"""As many as most class capsules have numbers."""


def check_alike(cnn: ImageClassifier, model: CapsuleClassifier) -> None:
    """Both take the same images, and name the same classes.

    Raises:
        CapsellaError: they do not.
    """
    for what in ("image_size", "channels", "classes"):
        theirs, ours = getattr(cnn, what), getattr(model, what)
        if theirs != ours:
            raise CapsellaError(
                f"a CNN beside a capsule network must take the same images and classes: its {what} must be {ours}, "
                f"got {theirs}"
            )


def add_beside(
    name: str, cnn: ImageClassifier, images: UInt8[Tensor, "n c h w"], arrays: Arrays, prefix: str
) -> dict[str, Any]:
    """Keep activations, features and angles of each image and change; returns facts about the CNN.

    A feature is a number that goes into the last layer; of a map, its mean. Kept are those that move most on these
    images, each in parts of the largest that it has on them: [n stops features]. Angles [n stops], in degrees, are
    those of all features, from the unchanged image's.
    """
    changes = changes_of(images.shape[3])
    pixels = images.float() / 255
    seen = [[_features(cnn, turned(pixels, change.name, amount)) for amount in change.amounts] for change in changes]
    found = [torch.stack([features for _, features in stops], 1) for stops in seen]  # of each change [n stops f]
    moves = torch.cat([(one.amax(1) - one.amin(1)) for one in found]).mean(0)
    kept = moves.argsort(descending=True, stable=True)[:MOST_FEATURES]
    largest = torch.cat(found, 1).abs().amax((0, 1))[kept].clamp(min=1e-12)
    for number, (stops, features) in enumerate(zip(seen, found, strict=True)):
        rest = features[:, features.shape[1] // 2, None]
        cosine = torch.nn.functional.cosine_similarity(features, rest, dim=2).clamp(-1, 1)
        active = torch.stack([activations for activations, _ in stops], 1)
        arrays.add(f"{prefix}/besideActivations{number}", "f4", active.numpy())
        arrays.add(f"{prefix}/besideFeatures{number}", "f4", (features[:, :, kept] / largest).numpy())
        arrays.add(f"{prefix}/besideAngles{number}", "f4", cosine.arccos().rad2deg().numpy())
    return {"name": name, "network": cnn.name, "features": len(kept), "of": found[0].shape[2]}


def _features(cnn: ImageClassifier, images: Float[Tensor, "n c h w"]) -> tuple[Tensor, Tensor]:
    """Activations [n classes], and what goes into the last layer [n f]."""
    activations: list[Tensor] = []
    features: list[Tensor] = []

    def keep(module: torch.nn.Module, given: tuple[Tensor, ...]) -> None:
        features.append((given[0].mean((2, 3)) if given[0].ndim == 4 else given[0]).float().cpu())

    hook = cnn.last_layer().register_forward_pre_hook(keep)
    try:
        with inference(cnn) as device:
            for part in images.split(BATCH):
                activations.append(cnn(part.to(device)).activations.float().cpu())
    finally:
        hook.remove()
    return torch.cat(activations).clone(), torch.cat(features).clone()
