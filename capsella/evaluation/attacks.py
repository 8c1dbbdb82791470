"""Adversarial attacks within an L∞ ball, and the accuracy of networks under them.

FGSM, BIM, PGD with restarts, the vote attack, and an attack that also evades the OOD detector.

They maximise the margin between log-odds, not the training loss. A length or a logistic near 0 or 1 is almost flat,
and losses that are flat there (margin and spread loss beyond their margins) mask the gradient: an attack then fails,
and the network looks robust. Log-odds undo both activation functions: they are ln ‖s‖² of a squashed length
‖s‖²/(1+‖s‖²), and λ(β_a − cost) of an EM capsule. They are computed from float32 activations and end at 16.6 and −27.6,
where they have no gradient; reports count such images.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.data import ImageSet, batches
from capsella.errors import ArgumentError, check_argument, check_minimum, not_negative
from capsella.layers import CapsuleConv2d
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import (
    device_of,
    evaluation_mode,
    inference,
    predict_with_scores,
    without_unused_decoder,
)
from capsella.progress import tracked
from capsella.routing import LogisticRouting, capsule_votes
from capsella.seeds import mixed_seed
from capsella.types import Output, check_finite
from capsella.uncertainty import FALSE_POSITIVE_RATE

BY_VOTES = ("lengths", "log-odds")  # kinds of activations that votes alone determine, by length or agreement
LEAST = 1e-12  # floor of activations and squared lengths, which keeps their logarithm finite
LEAST_BELOW_ONE = 2.0**-24  # floor of 1 − a: half a step of float32 below 1
_FOOLED = 1e9  # an image that fools the network beats any that does not, however high its OOD scores
# PGD for the check at ε = 1, fixed so that a weak attack does not look like a masked gradient. It costs little if
# nothing is masked, because misclassified images skip the later restarts.
FULL_REACH = {"steps": 40, "restarts": 5}

Score = Callable[[ImageClassifier, Tensor], Tensor]  # a model and images [b c h w] → log-odds [b classes]
Key = tuple[str, str | None, float]  # attack, source, ε


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


# Accuracy under attack


@dataclass(frozen=True)
class AttackOptions:
    """Options of the attacks."""

    epsilons: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4)
    """Largest changes of a pixel, for images in [0, 1]; ascending."""
    steps: int = 20
    """Steps of PGD and of the vote attack; BIM takes half as many, at least one, the adaptive attack twice as many."""
    restarts: int = 3
    """Random starts of PGD, the vote attack and the adaptive attack."""
    seed: int = 0
    """Seed of the random starts."""
    batch_size: int = 50
    """Images per batch."""

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip(self.epsilons, self.epsilons[1:], strict=False))
        inside = bool(self.epsilons) and 0 < self.epsilons[0] <= self.epsilons[-1] <= 1
        check_argument(rising and inside, "be at least one, rising within (0, 1]", epsilons=self.epsilons)
        check_minimum(1, steps=self.steps, restarts=self.restarts, batch_size=self.batch_size)
        not_negative(seed=self.seed)


@dataclass(frozen=True)
class AttackCurve:
    """One attack on one network.

    Attributes:
        attack: FGSM, BIM, PGD, vote, adaptive or transfer.
        source: for a transfer attack, the network that the PGD images were made for.
        accuracy: at each ε, in per cent.
        fooled: at each ε, the number of images that are correct without the attack and wrong under it.
        flagged: at each ε, the number of fooled images that are flagged as OOD; empty without a detector.
    """

    attack: str
    source: str | None
    accuracy: tuple[float, ...]
    fooled: tuple[int, ...] = ()
    flagged: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The name of the attack in tables."""
        return self.attack if self.source is None else f"{self.attack} from {self.source}"


@dataclass(frozen=True)
class AttackResult:
    """The results of every attack on one network.

    Attributes:
        clean: accuracy without an attack, in per cent.
        at_full_reach: accuracy under PGD at ε = 1, in per cent. Every image is within reach there, so anything above 0
            is the attack's failure, usually a masked gradient.
        zero_gradient: proportion of pixels whose gradient is exactly 0, in per cent (Hinton et al. 2018, section 6).
        without_gradient: number of images without any gradient.
        curves: one per attack and, for transfers, source.
        false_positives: images flagged as OOD without an attack, in per cent; None without a detector.
    """

    clean: float
    at_full_reach: float
    zero_gradient: float
    without_gradient: int
    curves: tuple[AttackCurve, ...]
    false_positives: float | None = None

    @property
    def is_masked(self) -> bool:
        """True if the gradients cannot be trusted, so that the curves overstate the robustness.

        Images without any gradient count by themselves, because at ε = 1 random starts alone may fool a network.
        """
        return self.at_full_reach > 0 or self.without_gradient > 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON."""
        return {
            "clean_accuracy_percent": self.clean,
            "pgd_accuracy_at_epsilon_1_percent": self.at_full_reach,
            "zero_gradient_percent": self.zero_gradient,
            "images_without_gradient": self.without_gradient,
            "masked": self.is_masked,
            **({} if self.false_positives is None else {"flagged_without_attack_percent": self.false_positives}),
            "attacks": [
                {
                    "attack": curve.attack,
                    "source": curve.source,
                    "accuracy_percent": list(curve.accuracy),
                    "fooled": list(curve.fooled),
                    **({"fooled_and_flagged": list(curve.flagged)} if curve.flagged else {}),
                }
                for curve in self.curves
            ],
        }


def attack_networks(
    models: Mapping[str, ImageClassifier],
    images: ImageSet,
    options: AttackOptions = AttackOptions(),
    progress: bool = False,
    false_positive_rate: float | None = None,
) -> dict[str, AttackResult]:
    """Attack each network with FGSM, BIM and PGD, with the vote attack if it has capsules, and with others' PGD images.

    With `false_positive_rate`, also with the adaptive attack, and count which successful attacks are flagged as OOD.

    Args:
        models: by name, of the same classes and image size.
        images: labelled images.
        options: steps, restarts and ε.
        progress: show a progress bar on standard error.
        false_positive_rate: of the OOD check, in models whose detector was fitted with enough validation images.
    """
    if not models or len(images) == 0:
        raise ArgumentError("models, images", "be at least one", (len(models), len(images)))
    for name, model in models.items():
        if model.classes != images.classes:
            raise ArgumentError("images.classes", f"be {name}'s {model.classes}", images.classes)
        model.check_images(images.images[:1])
    records = {name: _Record(model, false_positive_rate) for name, model in models.items()}
    steps = -(-len(images) // options.batch_size) * len(models) * (len(options.epsilons) + 1)
    for _ in tracked(_attack_all(records, images, options), "attack", steps, is_shown=progress):
        pass
    return {name: record.result(options) for name, record in records.items()}


class _Record:
    """Each image's outcome for one network: correct and flagged as OOD, by attack, source and ε; and its gradient."""

    def __init__(self, model: ImageClassifier, false_positive_rate: float | None) -> None:
        self.model, self.rate, detector = model, false_positive_rate or 0.0, model.ood_detector
        self.detector = detector if detector is not None and detector.supports(false_positive_rate) else None
        self.outcomes = defaultdict[Key, list[Tensor]](list)
        self.zeros: list[Tensor] = []

    def judge(self, key: Key, images: Tensor, labels: Tensor) -> None:
        """Record which images are correct, and which are flagged."""
        quick = without_unused_decoder(self.model, self.detector)
        with inference(quick) as device:
            x, flagged = images.to(device), torch.zeros_like(labels, dtype=torch.bool)
            if self.detector is None:
                activations = quick(x).activations
            else:
                output, scores = predict_with_scores(quick, x, self.detector)
                activations, flagged = output.activations, scores.amax(1).cpu() > self.detector.threshold(self.rate)
            check_finite(activations)
            self.outcomes[key].append(torch.stack([activations.argmax(1).cpu() == labels.cpu(), flagged.cpu()]))

    def result(self, options: AttackOptions) -> AttackResult:
        """Return the outcomes of all batches, in per cent."""
        outcomes = {key: torch.cat(parts, 1).clone() for key, parts in self.outcomes.items()}
        (was_right, was_flagged), zeros = outcomes["clean", None, 0.0], torch.cat(self.zeros)

        def accuracy(key: Key) -> float:
            return 100 * int(outcomes[key][0].sum()) / len(was_right)

        curves = []
        attacks = dict.fromkeys((attack, source) for attack, source, _ in outcomes if attack not in ("clean", "full"))
        for attack in sorted(attacks, key=lambda attack: attack[1] is not None):  # white-box attacks first
            keys = [(*attack, epsilon) for epsilon in options.epsilons]
            fooled = [was_right & ~outcomes[key][0] for key in keys]
            found = [f & outcomes[key][1] for f, key in zip(fooled, keys, strict=True)] if self.detector else []
            counts = [tuple(int(column.sum()) for column in columns) for columns in (fooled, found)]
            curves.append(AttackCurve(*attack, tuple(map(accuracy, keys)), *counts))
        return AttackResult(
            clean=accuracy(("clean", None, 0.0)),
            at_full_reach=accuracy(("full", None, 1.0)),
            zero_gradient=100 * float(zeros.double().mean()),
            without_gradient=int((zeros == 1).sum()),
            curves=tuple(curves),
            false_positives=None if self.detector is None else 100 * int(was_flagged.sum()) / len(was_right),
        )


def _attack_all(records: Mapping[str, _Record], images: ImageSet, options: AttackOptions) -> Iterator[None]:
    """Run every attack on each batch; yield after each network at each ε, and after each at ε = 1."""
    for number, (pixels, labels, _) in enumerate(batches(images, options.batch_size)):
        for record in records.values():
            record.judge(("clean", None, 0.0), pixels, labels)
        for place, (name, record) in enumerate(records.items()):
            model, device = record.model, device_of(record.model)
            x, y = pixels.to(device), labels.to(device)

            def search(*at: int, place: int = place, number: int = number) -> dict[str, Any]:
                """Return PGD options whose random starts depend only on batch, network and attack."""
                generator = torch.Generator().manual_seed(mixed_seed(options.seed, number, place, *at))
                return {"steps": options.steps, "restarts": options.restarts, "generator": generator}

            record.zeros.append((margin_gradient(model, x, y) == 0).flatten(1).cpu().double().mean(1))
            for at, epsilon in enumerate(options.epsilons):
                worst = pgd(model, x, y, epsilon, **search(at, 0))
                record.judge(("FGSM", None, epsilon), fgsm(model, x, y, epsilon), labels)
                record.judge(("BIM", None, epsilon), bim(model, x, y, epsilon, max(1, options.steps // 2)), labels)
                record.judge(("PGD", None, epsilon), worst, labels)
                if has_class_capsules(model):
                    votes = pgd(model, x, y, epsilon, score=vote_log_odds, **search(at, 1))
                    record.judge(("vote", None, epsilon), votes, labels)
                if record.detector is not None:
                    hard = {**search(at, 2), "steps": 2 * options.steps, "false_positive_rate": record.rate}
                    record.judge(("adaptive", None, epsilon), adaptive_attack(model, x, y, epsilon, **hard), labels)
                for other, target in records.items():
                    if other != name:
                        target.judge(("transfer", name, epsilon), worst, labels)
                yield
            reached = pgd(model, x, y, 1.0, **{**search(len(options.epsilons), 0), **FULL_REACH})
            record.judge(("full", None, 1.0), reached, labels)
            yield
