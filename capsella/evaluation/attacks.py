"""Adversarial attacks within an L∞ ball: FGSM, BIM, PGD with restarts, the vote attack, and an adaptive attack.

They climb the margin between log-odds, not the training loss. A length or a logistic near 0 or 1 has next to no slope,
and losses that are flat there (margin and spread loss beyond their margins) mask the gradient: an attack then fails,
and the network looks robust. Log-odds undo both activation functions: they are ln ‖s‖² of a squashed length
‖s‖²/(1+‖s‖²), and λ(β_a − cost) of an EM capsule. They come from activations in float32, so they end at 16.6 and −27.6,
without a gradient there; a report counts such images.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from capsella.errors import ArgumentError, check_argument, check_minimum
from capsella.layers import CapsuleConv2d
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import evaluation_mode
from capsella.models.scoring import predict_with_scores, without_unused_decoder
from capsella.routing import LogisticRouting, capsule_votes
from capsella.types import Output
from capsella.uncertainty import FALSE_POSITIVE_RATE, OODDetector

BY_VOTES = ("lengths", "log-odds")  # kinds of activations that votes alone determine, by length or agreement
LEAST = 1e-12  # floor of activations and squared lengths, which keeps their logarithm finite
LEAST_BELOW_ONE = 2.0**-24  # floor of 1 − a: half a step of float32 below 1


def log_odds(output: Output) -> Float[Tensor, "b classes"]:
    """Return ln a/(1 − a) of each class capsule's activation a, or a CNN's logits."""
    if output.logits is not None:
        return output.logits.float()
    a = output.activations.float()
    return a.clamp(min=LEAST).log() - (1 - a).clamp(min=LEAST_BELOW_ONE).log()


def margin(odds: Float[Tensor, "b classes"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Return max_{k≠y} z_k − z_y of each image with class y, which is above 0 if it is misclassified.

    Carlini and Wagner 2017, section V.A, f6.
    """
    true = odds.gather(1, labels[:, None])
    return odds.scatter(1, labels[:, None], float("-inf")).amax(1) - true[:, 0]


def vote_log_odds(model: ImageClassifier, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
    """Return log-odds from the votes for the class capsules with uniform couplings: without the last routing.

    For dynamic routing, self-attention, and uniform and random couplings:
    ‖squash(1/N Σ_i û_j|i)‖ over all N children, as in the authors' code; its log-odds are ln ‖1/N Σ_i û_j|i‖².

    For EM routing and others by agreement (not in the paper), the length of a pose does not encode presence: the
    log-odds after one pass with uniform couplings; for EM's fixed start λ_0(β_a − Σ_h cost).

    Capsule layers below the last route as usual (the paper's network has none).
    """
    model, layer = class_capsules(model)
    children = model.capsule_layers[:-1](model.primary(model.backbone(images)))
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


def class_capsules(model: ImageClassifier) -> tuple[CapsuleClassifier, CapsuleConv2d]:
    """Return the model and its layer of routed class capsules."""
    if isinstance(model, CapsuleClassifier) and has_class_capsules(model):
        return model, cast(CapsuleConv2d, model.last_layer())
    raise ArgumentError("model", "have routed class capsules for the vote attack", type(model).__name__)


Score = Callable[[Tensor], Tensor]  # images [b c h w] → log-odds [b classes]


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
    check_attack(model, images, labels, epsilon)
    with attacked_mode(model):
        return _Climb(images, labels, epsilon, 1, epsilon)(_whole(model), images)


def bim(
    model: ImageClassifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"],
    epsilon: float,
    *,
    steps: int = 10,
    step_size: float | None = None,
) -> Float[Tensor, "b c h w"]:
    """Run the basic iterative method: FGSM in small steps, clipped after each (Kurakin et al. 2017, section 2.2).

    Args:
        model, images, labels, epsilon: as for `fgsm`.
        steps: at least 1.
        step_size: of each; None takes 1.25·ε/steps, the paper's ratio of path to ε.
    """
    check_attack(model, images, labels, epsilon, steps, step_size)
    with attacked_mode(model):
        return _Climb(images, labels, epsilon, steps, step_size or 1.25 * epsilon / steps)(_whole(model), images)


def pgd(
    model: ImageClassifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"],
    epsilon: float,
    *,
    steps: int = 20,
    step_size: float | None = None,
    restarts: int = 3,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c h w"]:
    """Run projected gradient descent from random points of the ball; keep the worst restart (Madry et al. 2018).

    Args:
        model, images, labels, epsilon: as for `fgsm`.
        steps: of each restart, at least 1.
        step_size: of each; None takes 2.5·ε/steps, the paper's, which reaches every point of the ball.
        restarts: at least 1. Images that are misclassified already skip the later ones.
        generator: of the starting points, on the CPU; None takes torch's.
    """
    check_attack(model, images, labels, epsilon, steps, step_size, restarts)
    climb = _Climb(images, labels, epsilon, steps, step_size or 2.5 * epsilon / steps)
    with attacked_mode(model):
        return climb.restarted(_whole(model), _whole(model), restarts, generator)


def vote_attack(
    model: ImageClassifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"],
    epsilon: float,
    *,
    steps: int = 20,
    step_size: float | None = None,
    restarts: int = 3,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c h w"]:
    """Run PGD on the votes for the class capsules, bypassing their routing (Gu, Wu, Tresp 2021, section 4).

    The gradient is that of `vote_log_odds`; of several restarts, the worst for the whole network, routing included, is
    kept. Arguments as for `pgd`.
    """
    check_attack(model, images, labels, epsilon, steps, step_size, restarts)
    class_capsules(model)
    climb = _Climb(images, labels, epsilon, steps, step_size or 2.5 * epsilon / steps)
    with attacked_mode(model):
        return climb.restarted(lambda batch: vote_log_odds(model, batch), _whole(model), restarts, generator)


def margin_gradient(
    model: ImageClassifier, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"]
) -> Float[Tensor, "b c h w"]:
    """Return the gradient that white-box attacks follow; zeros in it indicate masking (Hinton et al. 2018, §6)."""
    check_attack(model, images, labels, 0.0)
    with attacked_mode(model):
        return _gradient(_whole(model), images, labels)


@dataclass(frozen=True)
class _Climb:
    """A climb along the sign of the gradient, clipped after each step to the ball of ε and to [0, 1]."""

    images: Tensor
    labels: Tensor
    epsilon: float
    steps: int
    step_size: float

    def __call__(self, score: Score, start: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor:
        """Return the end of a climb along `score` from `start`, for the images at `chosen`."""
        images, labels = self.images[chosen], self.labels[chosen]
        low, high = (images - self.epsilon).clamp(min=0), (images + self.epsilon).clamp(max=1)
        attacked = start
        for _ in range(self.steps):
            step = self.step_size * _gradient(score, attacked, labels).sign()
            attacked = (attacked + step).clamp(low, high)
        return attacked

    def restarted(self, score: Score, judge: Score, restarts: int, generator: torch.Generator | None) -> Tensor:
        """Climb from random points of the ball; return the worst of all ends and of the images themselves, by `judge`.

        Images that are misclassified without an attack climb once too: another network may classify them correctly.
        """
        best = self.images.clone()
        worst = _margin(judge, best, self.labels)
        for number in range(restarts):
            right = ((worst <= 0) | (number == 0)).nonzero()[:, 0]
            if len(right) == 0:
                break
            # Drawn for all images, so that an image's starts do not depend on the others.
            noise = self.epsilon * (2 * torch.rand(self.images.shape, generator=generator) - 1)
            start = (self.images + noise.to(self.images)).clamp(0, 1)
            end = self(score, start[right], right)
            reached = _margin(judge, end, self.labels[right])
            better = reached > worst[right]
            best[right[better]], worst[right[better]] = end[better], reached[better]
        return best


@torch.no_grad()
def _margin(score: Score, images: Tensor, labels: Tensor) -> Tensor:
    return margin(score(images), labels)


def _gradient(score: Score, images: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of the margin; images of a batch are independent."""
    with torch.enable_grad():
        x = images.detach().requires_grad_()
        return torch.autograd.grad(margin(score(x), labels).sum(), x)[0]


def _whole(model: ImageClassifier) -> Score:
    return lambda images: log_odds(model(images))


@contextmanager
def attacked_mode(model: ImageClassifier) -> Iterator[None]:
    """Put `model` in evaluation mode and its parameters without gradients; restore both."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in learned:
            parameter.requires_grad_(False)
        with evaluation_mode(model):
            yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


def check_attack(
    model: ImageClassifier,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    steps: int = 1,
    step_size: float | None = None,
    restarts: int = 1,
) -> None:
    """Check images, classes and numbers of an attack."""
    model.check_images(images)
    inside: Bool[Tensor, ""] = ((images >= 0) & (images <= 1)).all()
    if not inside:
        raise ValueError(f"images: must be in [0, 1], got {float(images.min()):.3g} to {float(images.max()):.3g}")
    classes = len(model.classes)
    if labels.shape != images.shape[:1] or labels.is_floating_point() or not ((labels >= 0) & (labels < classes)).all():
        raise ValueError(
            f"labels: must be class numbers [b] = ({len(images)},) from 0 to {classes - 1}, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    check_argument(0 <= epsilon <= 1, "be in [0, 1], in units of the images", epsilon=epsilon)
    check_minimum(1, steps=steps, restarts=restarts)
    check_argument(step_size is None or step_size > 0, "be above 0 or None", step_size=step_size)


_FOOLED = 1e9  # an image that fools the network beats any that does not, however high its OOD scores
Look = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # images and classes → margin, and excess over the threshold


def adaptive_attack(
    model: ImageClassifier,
    detector: OODDetector,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"],
    epsilon: float,
    *,
    false_positive_rate: float = FALSE_POSITIVE_RATE,
    steps: int = 40,
    step_size: float | None = None,
    restarts: int = 3,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c h w"]:
    """Run PGD against network and OOD detector: fool the network, then bring the scores below the threshold.

    With a decoder, this is the reconstructive attack of Frosst, Sabour and Hinton 2018 (R-BIM) in the two stages of Qin
    et al. 2020 (arXiv 1907.02957); every other score in use is brought down as well. Returns, for each image, the least
    conspicuous point of its path that fools the network; if none does, the one nearest to it.

    Args:
        detector: the model's.
        false_positive_rate: of the detector's threshold.
        model, images, labels, epsilon, steps, step_size, restarts, generator: as for `pgd`.
    """
    check_attack(model, images, labels, epsilon, steps, step_size, restarts)
    quick, size = without_unused_decoder(model, detector), step_size or 2.5 * epsilon / steps
    threshold = detector.threshold(false_positive_rate)
    low, high = (images - epsilon).clamp(min=0), (images + epsilon).clamp(max=1)

    def look(x: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
        output, scores = predict_with_scores(quick, x, detector)
        return margin(log_odds(output), true), (scores - threshold).relu().sum(1)

    best, merit = images, torch.full((len(images),), -torch.inf, dtype=torch.float64, device=images.device)
    with attacked_mode(quick):
        for _ in range(restarts):
            noise = epsilon * (2 * torch.rand(images.shape, generator=generator) - 1)
            x = (images + noise.to(images)).clamp(0, 1)
            for _ in range(steps + 1):
                gradient, reached = _slope(look, x, labels)
                best = torch.where((reached > merit)[:, None, None, None], x, best)
                merit = merit.maximum(reached)
                x = (x + size * gradient.sign()).clamp(low, high)
    return best


def _slope(look: Look, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of each image's stage, and its merit: the margin, or minus the excess over the threshold."""
    with torch.enable_grad():
        x = images.detach().requires_grad_()
        from_class, beyond = look(x, labels)
        fooled = from_class > 0
        gradient = torch.autograd.grad(torch.where(fooled, -beyond, from_class).sum(), x)[0]
    merit = torch.where(fooled, _FOOLED - beyond.double(), from_class.double())
    return gradient, merit.detach()
