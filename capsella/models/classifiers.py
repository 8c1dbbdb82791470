"""The base classes of the two kinds of networks: capsule networks and CNNs."""

from itertools import takewhile
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsella.errors import ArgumentError
from capsella.layers import CapsuleConv2d, PoseScores, he_init_, mask_all_but
from capsella.models.base import ImageClassifier
from capsella.routing import Routing
from capsella.types import Capsules, Output, at_least_float32


class CapsuleClassifier(ImageClassifier):
    """Convolutions, primary capsules, routed capsule layers, and an optional decoder.

    Args:
        backbone: maps images to feature maps.
        primary: maps feature maps to primary capsules.
        capsule_layers: map primary capsules to one capsule per class.
        decoder: maps masked class capsules to images.
        logits: return the log-odds of the class capsules as logits, for a cross-entropy (see `Output`).
        scores: maps class capsules to logits [b classes]; their softmax replaces the activations.
        shape: `image_size`, `channels` and `classes` of `ImageClassifier`.
    """

    def __init__(
        self,
        backbone: nn.Module,
        primary: nn.Module,
        capsule_layers: nn.Sequential,
        decoder: nn.Module | None = None,
        *,
        logits: bool = False,
        scores: nn.Module | None = None,
        **shape: Any,
    ) -> None:
        super().__init__(**shape)
        self.backbone, self.primary, self.capsule_layers, self.decoder = backbone, primary, capsule_layers, decoder
        self.scores, self.logits = scores, logits
        routing = self.class_routing
        if routing is not None and routing.activation_kind == "shares" and decoder is None and scores is None:
            # The votes make only poses, which nothing reads; training on several devices fails for unused weights.
            self.last_layer().weight.requires_grad_(False)
        if routing is not None and not routing.has_activations and not isinstance(scores, PoseScores):
            hint = "its parents have only poses; tsai2020_resnet can classify by poses"
            raise ArgumentError("routing", "have activations", routing.name, hint)

    @property
    def has_decoder(self) -> bool:
        """True if the network was created with `reconstruction=True`."""
        return self.decoder is not None

    def feature_layers(self) -> nn.Module:
        """Return the layers before the primary capsules."""
        return self.backbone

    def last_layer(self) -> nn.Module:
        """Return the class capsules."""
        return self.capsule_layers[-1]

    @property
    def class_routing(self) -> Routing | None:
        """The routing of the class capsules; None if their layer is not a `CapsuleConv2d`."""
        last = self.last_layer()
        return last.routing if isinstance(last, CapsuleConv2d) else None

    def encode(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Return the class capsules: poses [b 1 1 classes d], activations [b 1 1 classes]."""
        return self._encode(images)[0]

    def _encode(self, images: Tensor) -> tuple[Capsules, Tensor | None]:
        """Return the class capsules, and logits if the network has any."""
        self.check_images(images)
        children = self.primary(self.backbone(images))
        if self.scores is not None:
            capsules: Capsules = self.capsule_layers(children)
            scores: Tensor = self.scores(capsules)
            return Capsules(capsules.poses, scores.softmax(1)[:, None, None]), scores
        if not self.logits:
            return self.capsule_layers(children), None
        last = cast(CapsuleConv2d, self.capsule_layers[-1])
        routed = last.route_logits(self.capsule_layers[:-1](children))
        return routed.capsules(), routed.log_odds[:, 0, 0]

    def decode(self, capsules: Capsules, target: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        """Return images decoded from the pose of each image's `target` class, with all others masked."""
        if self.decoder is None:
            return super().decode(capsules, target)
        images: Tensor = self.decoder(mask_all_but(capsules, target))
        return images

    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b *k"] | None = None) -> Output:
        """Return activations, class capsules, and the reconstruction from the class in `labels`, or the predicted one.

        Raises:
            ValueError: images that do not fit the model, or labels that are not one or two classes per image.
        """
        capsules, logits = self._encode(images)
        activations = capsules.activations[:, 0, 0, :]
        if self.decoder is None:
            return Output(activations, capsules, logits=logits)
        target = activations.argmax(1) if labels is None else labels
        if target.ndim == 1:
            return Output(activations, capsules, self.decode(capsules, target), logits)
        reconstructions = torch.stack([self.decode(capsules, column) for column in target.unbind(1)], 1)
        return Output(activations, capsules, reconstructions, logits)


class ConvolutionalClassifier(ImageClassifier):
    """A CNN: one network from images to logits; activations are their softmax or sigmoid.

    Weights are initialised by `he_init_`, unless `initialized=True`. With PyTorch's default, a baseline of six layers
    stays at chance on bright images, which would flatter the capsules.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        activation: Literal["softmax", "sigmoid"] = "softmax",
        initialized: bool = False,
        **shape: Any,
    ) -> None:
        super().__init__(**shape)
        self.network, self.activation = network, activation
        if not initialized:
            he_init_(network)

    def feature_layers(self) -> nn.Module:
        """Return the layers before the first whose output is not a grid of feature maps."""
        layers = cast(nn.Sequential, self.network)
        return nn.Sequential(*takewhile(lambda layer: not isinstance(layer, nn.AdaptiveAvgPool2d | nn.Flatten), layers))

    def last_layer(self) -> nn.Module:
        """Return the last layer with weights."""
        return [module for module in self.network.modules() if isinstance(module, nn.Linear | nn.Conv2d)][-1]

    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b *k"] | None = None) -> Output:
        """Return activations and their logits; `labels` are unused, because there is no decoder."""
        self.check_images(images)
        logits: Tensor = self.network(images)
        scores = at_least_float32(logits)
        activations = scores.sigmoid() if self.activation == "sigmoid" else scores.softmax(1)
        return Output(activations, logits=logits)
