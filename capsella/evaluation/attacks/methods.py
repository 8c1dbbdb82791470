"""Adversarial images: FGSM, BIM, PGD with restarts, and the vote attack on capsules, all within an L∞ ball.

They climb the margin between log-odds, not the training's loss, whose slope vanishes where a capsule is sure: see
`capsella.evaluation.attacks.log_odds`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from capsella.errors import check_argument, check_minimum
from capsella.evaluation.attacks.log_odds import class_capsules, log_odds, margin, vote_log_odds
from capsella.models import ImageClassifier
from capsella.models.inference import evaluation_mode

Score = Callable[[Tensor], Tensor]
"""Images [b c h w] → log-odds [b classes], for the attack to bring down at the true class."""


def fgsm(
    model: ImageClassifier, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"], epsilon: float
) -> Float[Tensor, "b c h w"]:
    """Fast gradient sign method: one step of ε along the sign of the gradient (Goodfellow et al. 2015, section 4).

    Args:
        model: any registered model; its mode, its parameters and their gradients are left as they were.
        images: [b c h w], in [0, 1], on the model's device.
        labels: [b], the true classes.
        epsilon: the largest change of a pixel, in [0, 1].

    Returns:
        Images in [0, 1] that differ from `images` by at most ε a pixel.

    Raises:
        ValueError: images outside [0, 1] or of another shape than the model's, labels outside its classes, an ε outside
            [0, 1].
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
    """Basic iterative method: FGSM in small steps, clipped to the ball after each (Kurakin et al. 2017, section 2.2).

    Args:
        model, images, labels, epsilon: as for `fgsm`, as are the result and its errors.
        steps: at least 1.
        step_size: of each; None takes 1.25·ε/steps, the paper's ratio of path to ε.

    Raises:
        ValueError: also for `steps` below 1 and a step size that is not above 0.
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
    """Projected gradient descent from random points of the ball, the worst of all restarts (Madry et al. 2018).

    Args:
        model, images, labels, epsilon: as for `fgsm`, as are the result and its errors.
        steps: of each restart, at least 1.
        step_size: of each; None takes 2.5·ε/steps, the paper's, which reaches every point of the ball.
        restarts: at least 1. An image that is fooled already is spared the later ones.
        generator: of the starting points, on the CPU; None takes torch's.

    Raises:
        ValueError: also for `steps` or `restarts` below 1 and a step size that is not above 0.
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
    """PGD against the votes for the class capsules, past their routing (Gu, Wu, Tresp 2021, section 4).

    The gradient is that of `vote_log_odds`; of several restarts, the worst for the whole network, routing included, is
    kept. Arguments, result and errors as for `pgd`.

    Raises:
        ValueError: also for a model without class capsules.
    """
    check_attack(model, images, labels, epsilon, steps, step_size, restarts)
    class_capsules(model)
    climb = _Climb(images, labels, epsilon, steps, step_size or 2.5 * epsilon / steps)
    with attacked_mode(model):
        return climb.restarted(lambda batch: vote_log_odds(model, batch), _whole(model), restarts, generator)


def margin_gradient(
    model: ImageClassifier, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"]
) -> Float[Tensor, "b c h w"]:
    """The gradient that white-box attacks follow; zeros in it are what masking looks like (Hinton et al. 2018, §6).

    Raises:
        ValueError: as `fgsm`.
    """
    check_attack(model, images, labels, 0.0)
    with attacked_mode(model):
        return _gradient(_whole(model), images, labels)


@dataclass(frozen=True)
class _Climb:
    """Steps along the sign of the gradient, clipped after each to the ball of ε around `images` and to [0, 1]."""

    images: Tensor
    labels: Tensor
    epsilon: float
    steps: int
    step_size: float

    def __call__(self, score: Score, start: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor:
        """The end of a climb along `score` from `start`, for the images at `chosen`."""
        images, labels = self.images[chosen], self.labels[chosen]
        low, high = (images - self.epsilon).clamp(min=0), (images + self.epsilon).clamp(max=1)
        attacked = start
        for _ in range(self.steps):
            step = self.step_size * _gradient(score, attacked, labels).sign()
            attacked = (attacked + step).clamp(low, high)
        return attacked

    def restarted(self, score: Score, judge: Score, restarts: int, generator: torch.Generator | None) -> Tensor:
        """From random points of the ball; of all ends, and of the images themselves, the worst by `judge`.

        What is wrong without an attack climbs once, too: another network may have it right.
        """
        best = self.images.clone()
        worst = _margin(judge, best, self.labels)
        for number in range(restarts):
            right = ((worst <= 0) | (number == 0)).nonzero()[:, 0]
            if len(right) == 0:
                break
            # Drawn for all images, fooled ones too, so that an image's starts do not depend on how the others fared.
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
    """Of the margin; an image's own, since no image of a batch depends on another."""
    with torch.enable_grad():
        x = images.detach().requires_grad_()
        return torch.autograd.grad(margin(score(x), labels).sum(), x)[0]


def _whole(model: ImageClassifier) -> Score:
    return lambda images: log_odds(model(images))


@contextmanager
def attacked_mode(model: ImageClassifier) -> Iterator[None]:
    """`model` in evaluation mode, its parameters without gradients; both are restored."""
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
    """Raise `ValueError` for images, classes or numbers that no attack can take."""
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
