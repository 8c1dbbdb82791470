"""Adversarial attacks within an L∞ ball: FGSM, BIM, PGD with restarts, the vote attack, and an adaptive attack.

They maximise the margin between log-odds, not the training loss. A length or a logistic near 0 or 1 is almost flat,
and losses that are flat there (margin and spread loss beyond their margins) mask the gradient: an attack then fails,
and the network looks robust. Log-odds undo both activation functions: they are ln ‖s‖² of a squashed length
‖s‖²/(1+‖s‖²), and λ(β_a − cost) of an EM capsule. They are computed from float32 activations and end at 16.6 and −27.6,
where they have no gradient; reports count such images.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.errors import ArgumentError, check_argument, check_minimum
from capsella.layers import CapsuleConv2d
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import evaluation_mode, predict_with_scores, without_unused_decoder
from capsella.routing import LogisticRouting, capsule_votes
from capsella.types import Output
from capsella.uncertainty import FALSE_POSITIVE_RATE

BY_VOTES = ("lengths", "log-odds")  # kinds of activations that votes alone determine, by length or agreement
LEAST = 1e-12  # floor of activations and squared lengths, which keeps their logarithm finite
LEAST_BELOW_ONE = 2.0**-24  # floor of 1 − a: half a step of float32 below 1
_FOOLED = 1e9  # an image that fools the network beats any that does not, however high its OOD scores

Score = Callable[[ImageClassifier, Tensor], Tensor]  # a model and images [b c h w] → log-odds [b classes]


def log_odds(output: Output) -> Float[Tensor, "b classes"]:
    """Return ln a/(1 − a) of each class capsule's activation a, or a CNN's logits."""
    if output.logits is not None:
        return output.logits.float()
    a = output.activations.float()
    return a.clamp(min=LEAST).log() - (1 - a).clamp(min=LEAST_BELOW_ONE).log()


def network_log_odds(model: ImageClassifier, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
    """Return the log-odds of the whole network."""
    return log_odds(model(images))


def vote_log_odds(model: ImageClassifier, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
    """Return the log-odds of the class capsules from their votes with uniform couplings, without the last routing.

    With this score, `pgd` is the vote attack of Gu, Wu and Tresp 2021, section 4.

    For dynamic routing, self-attention, and uniform and random couplings, the activation is
    ‖squash(1/N Σ_i û_j|i)‖ over all N children, as in the authors' code; its log-odds are ln ‖1/N Σ_i û_j|i‖².

    For EM routing and others by agreement (not in the paper), the length of a pose does not encode presence, so
    the log-odds are those after one pass with uniform couplings; for EM's fixed start, λ_0(β_a − Σ_h cost).

    Capsule layers below the last route as usual (the paper's network has none).

    Raises:
        ArgumentError: the votes for the class capsules do not determine the class (`has_class_capsules`).
    """
    check_argument(has_class_capsules(model), "have routed class capsules for the vote attack", model=type(model))
    network = cast(CapsuleClassifier, model)
    layer = cast(CapsuleConv2d, network.last_layer())
    children = network.capsule_layers[:-1](network.primary(network.backbone(images)))
    inputs = layer.routing_inputs(children)
    votes, activations = capsule_votes(inputs)
    if not isinstance(layer.routing, LogisticRouting):
        return (votes.mean(1).square().sum(2) + LEAST).log()
    routing = layer.routing.with_uniform_couplings()
    routed = routing.route_logits(votes, activations, **layer.routing_parameters)
    parents = inputs.parent_logits(routed.poses, routed.log_odds)
    return (parents if layer.norm is None else layer.norm(parents)).log_odds[:, 0, 0].float()


def has_class_capsules(model: ImageClassifier) -> bool:
    """Return True if the vote attack applies: the votes for the class capsules determine the class."""
    if not isinstance(model, CapsuleClassifier) or model.class_routing is None:
        return False
    return model.class_routing.activation_kind in BY_VOTES


def margin(odds: Float[Tensor, "b classes"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Return max_{k≠y} z_k − z_y of each image with class y, which is above 0 if it is misclassified.

    Carlini and Wagner 2017, section V.A, f6.
    """
    true = odds.gather(1, labels[:, None])
    return odds.scatter(1, labels[:, None], float("-inf")).amax(1) - true[:, 0]


def margin_gradient(
    model: ImageClassifier, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"]
) -> Float[Tensor, "b c h w"]:
    """Return the gradient that white-box attacks follow; zeros in it indicate masking (Hinton et al. 2018, §6)."""
    with _attacked(model, images, labels, 0.0):
        return _gradient(network_log_odds, model, images, labels)


def _gradient(score: Score, model: ImageClassifier, images: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of the margin; images of a batch are independent."""
    with torch.enable_grad():
        x = images.detach().requires_grad_()
        return torch.autograd.grad(margin(score(model, x), labels).sum(), x)[0]


# Attacks


def fgsm(
    model: ImageClassifier, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"], epsilon: float
) -> Float[Tensor, "b c h w"]:
    """Run the fast gradient sign method: one step of ε along the gradient's sign (Goodfellow et al. 2015, section 4).

    Args:
        model: any registered model; its mode, its parameters and their gradients are left as they were.
        images: in [0, 1], on the model's device.
        labels: the true classes.
        epsilon: the largest change of a pixel, in [0, 1].

    Returns:
        Images in [0, 1] that differ from `images` by at most ε a pixel.
    """
    with _attacked(model, images, labels, epsilon):
        return _Ball(images, labels, epsilon).climb(model, images, 1, epsilon)


def bim(
    model: ImageClassifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"],
    epsilon: float,
    steps: int = 10,
) -> Float[Tensor, "b c h w"]:
    """Run the basic iterative method: FGSM in small steps, clipped after each (Kurakin et al. 2017, section 2.2).

    Arguments as for `fgsm`. The step size is 1.25·ε/steps, the paper's ratio of path length to ε.
    """
    with _attacked(model, images, labels, epsilon, steps=steps):
        return _Ball(images, labels, epsilon).climb(model, images, steps, 1.25 * epsilon / steps)


def pgd(
    model: ImageClassifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"],
    epsilon: float,
    *,
    steps: int = 20,
    restarts: int = 3,
    score: Score = network_log_odds,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c h w"]:
    """Run projected gradient descent from random points of the ball; keep the worst restart (Madry et al. 2018).

    The step size is 2.5·ε/steps, as in the paper, which reaches every point of the ball. Images that are already
    misclassified are attacked once, because another network may classify them correctly, and skip the later restarts.

    Args:
        model, images, labels, epsilon: as for `fgsm`.
        steps: steps per restart, at least 1.
        restarts: number of random starts, at least 1.
        score: log-odds whose margin is maximised: the network's, or `vote_log_odds`. Restarts are compared by the
            network's.
        generator: CPU generator of the starting points; None: PyTorch's global one.
    """
    ball, best = _Ball(images, labels, epsilon), images.clone()
    with _attacked(model, images, labels, epsilon, steps=steps, restarts=restarts):
        worst = _margin(model, best, labels)
        for number in range(restarts):
            right = ((worst <= 0) | (number == 0)).nonzero()[:, 0]
            if len(right) == 0:
                break
            # Drawn for all images, so that an image's starts do not depend on the others.
            start, part = ball.random_start(generator)[right], _Ball(images[right], labels[right], epsilon)
            end = part.climb(model, start, steps, 2.5 * epsilon / steps, score)
            reached = _margin(model, end, labels[right])
            better = reached > worst[right]
            best[right[better]], worst[right[better]] = end[better], reached[better]
    return best


def adaptive_attack(
    model: ImageClassifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"],
    epsilon: float,
    *,
    false_positive_rate: float = FALSE_POSITIVE_RATE,
    steps: int = 40,
    restarts: int = 3,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c h w"]:
    """Run PGD against network and OOD detector: fool the network, then bring the scores below the threshold.

    With a decoder, this is the reconstructive attack of Frosst, Sabour and Hinton 2018 (R-BIM) in the two stages of Qin
    et al. 2020 (arXiv 1907.02957); every other score in use is brought down as well. Of the points on each image's
    path, return the one that fools the network with the lowest scores; if none does, the one closest to fooling it.

    Args:
        model: a model with an `ood_detector`.
        false_positive_rate: the rate that sets the detector's threshold.
        images, labels, epsilon, steps, restarts, generator: as for `pgd`.
    """
    if (detector := model.ood_detector) is None:
        raise ArgumentError("model", "have an OOD detector", None)
    ball, threshold = _Ball(images, labels, epsilon), detector.threshold(false_positive_rate)
    quick = without_unused_decoder(model, detector)
    best, merit = images, torch.full((len(images),), -torch.inf, dtype=torch.float64, device=images.device)
    with _attacked(quick, images, labels, epsilon, steps=steps, restarts=restarts):
        for _ in range(restarts):
            x = ball.random_start(generator)
            for _ in range(steps + 1):
                with torch.enable_grad():
                    x = x.detach().requires_grad_()
                    output, scores = predict_with_scores(quick, x, detector)
                    from_class, beyond = margin(log_odds(output), labels), (scores - threshold).relu().sum(1)
                    fooled = from_class > 0
                    gradient = torch.autograd.grad(torch.where(fooled, -beyond, from_class).sum(), x)[0]
                reached = torch.where(fooled, _FOOLED - beyond.double(), from_class.double()).detach()
                best = torch.where((reached > merit)[:, None, None, None], x.detach(), best)
                merit = merit.maximum(reached)
                x = ball.clamp(x.detach() + 2.5 * epsilon / steps * gradient.sign())
    return best


@dataclass(frozen=True)
class _Ball:
    """All images in [0, 1] that differ from `images` by at most ε a pixel."""

    images: Tensor
    labels: Tensor
    epsilon: float

    def clamp(self, x: Tensor) -> Tensor:
        return x.clamp((self.images - self.epsilon).clamp(min=0), (self.images + self.epsilon).clamp(max=1))

    def random_start(self, generator: torch.Generator | None) -> Tensor:
        noise = self.epsilon * (2 * torch.rand(self.images.shape, generator=generator) - 1)
        return (self.images + noise.to(self.images)).clamp(0, 1)

    def climb(
        self, model: ImageClassifier, start: Tensor, steps: int, step_size: float, score: Score = network_log_odds
    ) -> Tensor:
        """Follow the sign of the gradient, clipped to the ball after each step; return the last images."""
        attacked = start
        for _ in range(steps):
            attacked = self.clamp(attacked + step_size * _gradient(score, model, attacked, self.labels).sign())
        return attacked


@torch.no_grad()
def _margin(model: ImageClassifier, images: Tensor, labels: Tensor) -> Tensor:
    return margin(network_log_odds(model, images), labels)


@contextmanager
def _attacked(model: ImageClassifier, images: Tensor, labels: Tensor, epsilon: float, **numbers: int) -> Iterator[None]:
    """Check the arguments; set `model` to evaluation mode and its parameters to no gradient; restore both."""
    model.check_images(images)
    low, high, classes = float(images.min()), float(images.max()), len(model.classes)
    check_argument(0 <= low <= high <= 1, "be in [0, 1]", images=(low, high))
    is_class = labels.shape == images.shape[:1] and bool(((labels >= 0) & (labels < classes)).all())
    check_argument(is_class, f"be [{len(images)}], class indices from 0 to {classes - 1}", labels=labels)
    check_argument(0 <= epsilon <= 1, "be in [0, 1], in units of the images", epsilon=epsilon)
    check_minimum(1, **numbers)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in learned:
            parameter.requires_grad_(False)
        with evaluation_mode(model):
            yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)
