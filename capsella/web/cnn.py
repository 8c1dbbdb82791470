"""Features of a CNN for changed images, which the page shows beside the capsule's pose."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from capsella.errors import CapsellaError
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import inference
from capsella.web.arrays import Arrays
from capsella.web.images import BATCH, change_images, changes_of

MAX_FEATURES = 16  # as many as most class capsules have pose elements


def check_same_task(cnn: ImageClassifier, model: CapsuleClassifier) -> None:
    """Check that both networks take the same images and have the same classes.

    Raises:
        CapsellaError: they do not.
    """
    for name in ("image_size", "channels", "classes", "value_range", "cut", "fit"):
        theirs, ours = getattr(cnn, name), getattr(model, name)
        if theirs != ours:
            raise CapsellaError(
                f"a CNN beside a capsule network must take the same images and classes: its {name} must be {ours}, "
                f"got {theirs}"
            )


@dataclass(frozen=True, eq=False)
class CnnFeatures:
    """A CNN and those of its features that the page shows.

    Attributes:
        name: name of its run.
        cnn: the network.
        kept: indices of the shown features.
        largest: largest magnitude of each shown feature on the images by which they were chosen.
        total: number of all features.
    """

    name: str
    cnn: ImageClassifier
    kept: Int[Tensor, " features"]
    largest: Float[Tensor, " features"]
    total: int

    @property
    def facts(self) -> dict[str, Any]:
        """JSON values for the page."""
        return {
            "name": self.name,
            "network": self.cnn.name,
            "features": len(self.kept),
            "of": self.total,
            "kept": self.kept.tolist(),
        }


def choose_features(name: str, cnn: ImageClassifier, images: UInt8[Tensor, "n c h w"]) -> CnnFeatures:
    """Choose the features that vary most when these images are changed.

    A feature is an input of the last layer, or the mean of an input feature map.
    """
    found = [features for _, features in _changed(cnn, images.float() / 255)]  # per change [n stops f]
    ranges = torch.cat([(features.amax(1) - features.amin(1)) for features in found]).mean(0)
    kept = ranges.argsort(descending=True, stable=True)[:MAX_FEATURES]
    largest = torch.cat(found, 1).abs().amax((0, 1))[kept].clamp(min=1e-12)
    return CnnFeatures(name, cnn, kept, largest, len(ranges))


def add_features(chosen: CnnFeatures, images: Float[Tensor, "n c h w"], arrays: Arrays, prefix: str) -> None:
    """Add the CNN's activations, features and angles for each change of each image in [0, 1].

    A change has several amounts, its stops. Features [n stops features] are divided by `largest`. Angles [n stops], in
    degrees, are those between the vector of all features and that of the unchanged image.
    """
    for number, (activations, features) in enumerate(_changed(chosen.cnn, images)):
        rest = features[:, features.shape[1] // 2, None]
        cosine = torch.nn.functional.cosine_similarity(features, rest, dim=2).clamp(-1, 1)
        shown = features[:, :, chosen.kept] / chosen.largest
        arrays.add(f"{prefix}/besideActivations{number}", "f4", activations.numpy())
        arrays.add(f"{prefix}/besideFeatures{number}", "f4", shown.numpy())
        arrays.add(f"{prefix}/besideAngles{number}", "f4", cosine.arccos().rad2deg().numpy())


def _changed(cnn: ImageClassifier, images: Float[Tensor, "n c h w"]) -> list[tuple[Tensor, Tensor]]:
    """Return activations [n stops classes] and features [n stops f] for each change."""
    made = []
    for change in changes_of(images.shape[3]):
        stops = [_features(cnn, change_images(images, change.name, amount)) for amount in change.amounts]
        activations, features = zip(*stops, strict=True)
        made.append((torch.stack(activations, 1), torch.stack(features, 1)))
    return made


def _features(cnn: ImageClassifier, images: Float[Tensor, "n c h w"]) -> tuple[Tensor, Tensor]:
    """Return activations [n classes] and inputs of the last layer [n f]."""
    activations: list[Tensor] = []
    features: list[Tensor] = []

    def keep(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        features.append((inputs[0].mean((2, 3)) if inputs[0].ndim == 4 else inputs[0]).float().cpu())

    hook = cnn.last_layer().register_forward_pre_hook(keep)
    try:
        with inference(cnn) as device:
            for batch in images.split(BATCH):
                activations.append(cnn(batch.to(device)).activations.float().cpu())
    finally:
        hook.remove()
    return torch.cat(activations).clone(), torch.cat(features).clone()
