"""What a network says for and against each class, as log-odds: the scale on which attacks climb without masking.

A length or a logistic near 0 or 1 has next to no slope, and losses that are flat there (margin and spread loss beyond
their margins) mask the gradient: an attack then fails, and the network looks robust. Log-odds undo both activation
functions: they are ln ‖s‖² of a squashed length ‖s‖²/(1+‖s‖²), and λ(β_a − cost) of an EM capsule. They come from the
activation in float32, so they end at 16.6 and −27.6, without a gradient there; a report counts such images.
"""

from typing import cast

from jaxtyping import Float, Int
from torch import Tensor

from capsella.errors import ArgumentError
from capsella.layers import CapsuleConv2d
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.routing import LogisticRouting, capsule_votes
from capsella.types import Output

BY_VOTES = ("lengths", "log-odds")
"""Kinds of activations that votes alone tell, by their length or their agreement."""
LEAST = 1e-12
"""Activations below it, and squared lengths, count as this: their logarithm stays finite."""
LEAST_BELOW_ONE = 2.0**-24
"""1 − a counts as at least half a step of float32 below 1."""


def log_odds(output: Output) -> Float[Tensor, "b classes"]:
    """Of each class: ln a/(1 − a) of a capsule's activation a; a CNN's logits as they are."""
    if output.logits is not None:
        return output.logits.float()
    a = output.activations.float()
    return a.clamp(min=LEAST).log() - (1 - a).clamp(min=LEAST_BELOW_ONE).log()


def margin(odds: Float[Tensor, "b classes"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """How far an image is from its own class y: max_{k≠y} z_k − z_y, above 0 where it is misclassified.

    Carlini and Wagner 2017, section V.A, f6.
    """
    true = odds.gather(1, labels[:, None])
    return odds.scatter(1, labels[:, None], float("-inf")).amax(1) - true[:, 0]


def vote_log_odds(model: ImageClassifier, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
    """What the votes for each class capsule say when every child counts alike: the network without its last routing.

    Dynamic routing, self-attention, and the uniform and random couplings that stand in for them:
    ‖squash(1/N Σ_i û_j|i)‖ over all N children, as in the authors' code; its log-odds are ln ‖1/N Σ_i û_j|i‖².

    EM routing and others by agreement (not in the paper): the length of a pose says nothing of its presence there. So:
    the log-odds after one pass with even couplings; of EM's fixed start, λ_0(β_a − Σ_h cost).

    Capsule layers below the last route as they always do (the paper's network has none).

    Raises:
        ValueError: a model without class capsules.
    """
    model, layer = class_capsules(model)
    children = model.capsule_layers[:-1](model.primary(model.backbone(images)))
    conv = layer.conv_of(children)
    votes, activations = capsule_votes(conv)
    if not isinstance(layer.routing, LogisticRouting):
        return (votes.mean(1).square().sum(2) + LEAST).log()
    scored = layer.routing.once().score(votes, activations, **layer.routing_parameters)
    parents = conv.scored_parents(scored.poses, scored.log_odds)
    return (parents if layer.norm is None else layer.norm(parents)).log_odds[:, 0, 0].float()


def has_class_capsules(model: ImageClassifier) -> bool:
    """Whether the vote attack can be made: the votes for the class capsules say which class is there."""
    if not isinstance(model, CapsuleClassifier) or model.class_routing is None:
        return False
    return model.class_routing.activation_kind in BY_VOTES


def class_capsules(model: ImageClassifier) -> tuple[CapsuleClassifier, CapsuleConv2d]:
    """The model itself, and its layer of routed class capsules.

    Raises:
        ValueError: it has none.
    """
    if isinstance(model, CapsuleClassifier) and has_class_capsules(model):
        return model, cast(CapsuleConv2d, model.last_layer())
    raise ArgumentError("model", "have routed class capsules for the vote attack", type(model).__name__)
