"""The attack of someone who knows that strange images are refused: fool the network, and look familiar."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.evaluation.attacks.log_odds import log_odds, margin
from capsella.evaluation.attacks.methods import attacked_mode, check_attack
from capsella.models import ImageClassifier, Novelty
from capsella.models.novelty.fitted import REFUSE
from capsella.models.novelty.observe import answer, only_as_needed

_FOOLED = 1e9  # an image that fools the network is better than any that does not, however strange it is
Look = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Images and true classes → how far each is from its class, and how far beyond the threshold its scores are."""


def adaptive_attack(
    model: ImageClassifier,
    novelty: Novelty,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"],
    epsilon: float,
    *,
    refuse: float = REFUSE,
    steps: int = 40,
    step_size: float | None = None,
    restarts: int = 3,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c h w"]:
    """PGD in two stages: away from the true class until the network is fooled, then towards what is known.

    With a decoder, this is the reconstructive attack of Frosst, Sabour and Hinton 2018 (R-BIM), in two stages as Qin et
    al. 2020 (arXiv 1907.02957) make it; every other score in use is brought below the threshold as well.

    `novelty` is the model's, and `refuse` the share of usual images that may be refused. Other arguments and errors
    are as for `pgd`. Of each image's way the least strange that fools is returned; if none does, the nearest to it.
    """
    check_attack(model, images, labels, epsilon, steps, step_size, restarts)
    quick, size = only_as_needed(model, novelty), step_size or 2.5 * epsilon / steps
    low, high = (images - epsilon).clamp(min=0), (images + epsilon).clamp(max=1)

    def look(x: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
        output, surprises = answer(quick, x, novelty)
        return margin(log_odds(output), true), (surprises - novelty.threshold(refuse)).relu().sum(1)

    best, worth = images, torch.full((len(images),), -torch.inf, dtype=torch.float64, device=images.device)
    with attacked_mode(quick):
        for _ in range(restarts):
            noise = epsilon * (2 * torch.rand(images.shape, generator=generator) - 1)
            x = (images + noise.to(images)).clamp(0, 1)
            for _ in range(steps + 1):
                gradient, reached = _slope(look, x, labels)
                best = torch.where((reached > worth)[:, None, None, None], x, best)
                worth = worth.maximum(reached)
                x = (x + size * gradient.sign()).clamp(low, high)
    return best


def _slope(look: Look, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The direction of each image's stage, and its worth: the margin, or how little it is beyond the threshold."""
    with torch.enable_grad():
        x = images.detach().requires_grad_()
        from_class, beyond = look(x, labels)
        fooled = from_class > 0
        gradient = torch.autograd.grad(torch.where(fooled, -beyond, from_class).sum(), x)[0]
    worth = torch.where(fooled, _FOOLED - beyond.double(), from_class.double())
    return gradient, worth.detach()
