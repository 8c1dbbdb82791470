"""What a CNN makes of a page's images as they are turned, shifted and scaled, to stand beside the capsule's pose."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
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
    for what in ("image_size", "channels", "classes", "value_range", "cut"):
        theirs, ours = getattr(cnn, what), getattr(model, what)
        if theirs != ours:
            raise CapsellaError(
                f"a CNN beside a capsule network must take the same images and classes: its {what} must be {ours}, "
                f"got {theirs}"
            )


@dataclass(frozen=True, eq=False)
class Beside:
    """A CNN beside capsules, and which of its features are shown. name: of its run.

    kept: [features], their places among `of` features. largest: [features], the largest size of each on the images
    that they were chosen by.
    """

    name: str
    cnn: ImageClassifier
    kept: Int[Tensor, " features"]
    largest: Float[Tensor, " features"]
    of: int

    @property
    def facts(self) -> dict[str, Any]:
        """What a page says of it."""
        return {
            "name": self.name,
            "network": self.cnn.name,
            "features": len(self.kept),
            "of": self.of,
            "kept": self.kept.tolist(),
        }


def choose_features(name: str, cnn: ImageClassifier, images: UInt8[Tensor, "n c h w"]) -> Beside:
    """Keep those features that move most on some images as these are changed.

    A feature is a number that goes into the last layer; of a map, its mean.
    """
    found = [features for _, features in _seen(cnn, images.float() / 255)]  # of each change [n stops f]
    moves = torch.cat([(one.amax(1) - one.amin(1)) for one in found]).mean(0)
    kept = moves.argsort(descending=True, stable=True)[:MOST_FEATURES]
    largest = torch.cat(found, 1).abs().amax((0, 1))[kept].clamp(min=1e-12)
    return Beside(name, cnn, kept, largest, len(moves))


def add_beside(beside: Beside, images: Float[Tensor, "n c h w"], arrays: Arrays, prefix: str) -> None:
    """Keep activations, features and angles of each image and change. images: in [0, 1].

    Features [n stops features] are in parts of the largest. Angles [n stops], in degrees, are those of all features,
    from the unchanged image's.
    """
    for number, (activations, features) in enumerate(_seen(beside.cnn, images)):
        rest = features[:, features.shape[1] // 2, None]
        cosine = torch.nn.functional.cosine_similarity(features, rest, dim=2).clamp(-1, 1)
        shown = features[:, :, beside.kept] / beside.largest
        arrays.add(f"{prefix}/besideActivations{number}", "f4", activations.numpy())
        arrays.add(f"{prefix}/besideFeatures{number}", "f4", shown.numpy())
        arrays.add(f"{prefix}/besideAngles{number}", "f4", cosine.arccos().rad2deg().numpy())


def _seen(cnn: ImageClassifier, images: Float[Tensor, "n c h w"]) -> list[tuple[Tensor, Tensor]]:
    """Activations [n stops classes] and features [n stops f], of each change."""
    made = []
    for change in changes_of(images.shape[3]):
        stops = [_features(cnn, turned(images, change.name, amount)) for amount in change.amounts]
        activations, features = zip(*stops, strict=True)
        made.append((torch.stack(activations, 1), torch.stack(features, 1)))
    return made


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
