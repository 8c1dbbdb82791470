"""Accuracy of networks under attack, as a function of the largest change of a pixel."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from capsella.data import ImageSet, batches
from capsella.errors import ArgumentError, check_argument, check_minimum, not_negative
from capsella.evaluation.attacks import (
    adaptive_attack,
    bim,
    fgsm,
    has_class_capsules,
    margin_gradient,
    pgd,
    vote_attack,
)
from capsella.models import ImageClassifier
from capsella.models.inference import inference
from capsella.models.scoring import predict_with_scores, without_unused_decoder
from capsella.seeds import mixed_seed
from capsella.types import check_finite
from capsella.uncertainty import OODDetector

# The check at ε = 1, whatever the attacks are allowed: a weak attack must not look like a masked gradient. It costs
# little if nothing is masked, because misclassified images skip the rest.
FULL_REACH_STEPS, FULL_REACH_RESTARTS = 40, 5


@dataclass(frozen=True)
class AttackOptions:
    """Options of the attacks."""

    epsilons: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4)
    """Largest changes of a pixel, for images in [0, 1]; ascending."""
    steps: int = 20
    """Steps of PGD and of the vote attack; BIM takes half as many, at least one."""
    restarts: int = 3
    """Random starts of PGD and of the vote attack."""
    seed: int = 0
    """Seed of the random starts."""
    batch_size: int = 50
    """Images at a time."""

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
        source: for a transfer, the network whose PGD images these are.
        accuracy: at each ε, in per cent.
        fooled: at each ε, the images that are correct without the attack and wrong under it.
        flagged: those of them that are flagged as OOD; empty without a detector.
    """

    attack: str
    source: str | None
    accuracy: tuple[float, ...]
    fooled: tuple[int, ...] = ()
    flagged: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The name in a table."""
        return self.attack if self.source is None else f"{self.attack} from {self.source}"


@dataclass(frozen=True)
class UnderAttack:
    """One network under every attack.

    Attributes:
        clean: accuracy without an attack, in per cent.
        at_full_reach: accuracy under PGD at ε = 1, in per cent. Every image is within reach there, so anything above 0
            is the attack's failure, usually a masked gradient.
        zero_gradient: proportion of pixels whose gradient is exactly 0, in per cent (Hinton et al. 2018, section 6).
        without_gradient: number of images without any gradient.
        curves: one per attack.
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
        """True if the gradients cannot be trusted, so that the curves overstate the network.

        An image without any gradient is a sign by itself: at ε = 1 random starts alone may fool a network.
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
) -> dict[str, UnderAttack]:
    """Attack each network with FGSM, BIM and PGD, with the vote attack if it has capsules, and with others' PGD images.

    With `false_positive_rate`, also with the adaptive attack, and count which successful attacks are flagged as OOD.

    Args:
        models: by name, of the same classes and image size.
        images: labelled images.
        options: steps, restarts and ε.
        progress: show a progress bar on standard error.
        false_positive_rate: of the OOD detector, for models that have one with enough validation images.
    """
    if not models or len(images) == 0:
        raise ArgumentError("models, images", "be at least one", (len(models), len(images)))
    for name, model in models.items():
        if model.classes != images.classes:
            raise ArgumentError("images.classes", f"be {name}'s {model.classes}", images.classes)
        model.check_images(images.images[:1])
    tallies = {}
    for name, model in models.items():
        detector = model.ood_detector
        usable = detector is not None and detector.supports(false_positive_rate)
        tallies[name] = _Tally(detector if usable else None, false_positive_rate)
    rounds = -(-len(images) // options.batch_size) * len(models) * (len(options.epsilons) + 1)
    console = Console(stderr=True)
    with Progress(console=console, disable=not (progress and console.is_terminal), transient=True) as bar:
        task = bar.add_task("attack", total=rounds)
        for number, batch in enumerate(batches(images, options.batch_size)):
            for _ in _attack_batch(models, tallies, batch.images, batch.labels, number, options):
                bar.advance(task)
    return {name: tally.result(len(images), options) for name, tally in tallies.items()}


Key = tuple[str, str | None, float]  # attack, source, ε


@dataclass
class _Tally:
    """Counts by attack, source and ε: correct, fooled and flagged images; and zeros of the gradients."""

    detector: OODDetector | None = None
    false_positive_rate: float | None = None
    right: Counter[Key] = field(default_factory=Counter)
    fooled: Counter[Key] = field(default_factory=Counter)
    flagged: Counter[Key] = field(default_factory=Counter)
    was_right: Bool[Tensor, " b"] = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    false_positives: int = 0
    zeros: int = 0
    pixels: int = 0
    without_gradient: int = 0

    def begin(self, model: ImageClassifier, images: Tensor, labels: Tensor) -> None:
        """Count a batch without an attack."""
        right, flagged = self._judge(model, images, labels)
        self.was_right = right
        self.right["clean", None, 0.0] += int(right.sum())
        self.false_positives += int(flagged.sum())

    def add(self, key: Key, model: ImageClassifier, images: Tensor, labels: Tensor) -> None:
        """Count the attacked images of that batch that are correct, and those that fool the network."""
        right, flagged = self._judge(model, images, labels)
        fooled = self.was_right & ~right
        self.right[key] += int(right.sum())
        self.fooled[key] += int(fooled.sum())
        self.flagged[key] += int((fooled & flagged).sum())

    def _judge(self, model: ImageClassifier, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return which images are correct, and which are flagged as OOD."""
        quick = without_unused_decoder(model, self.detector)
        with inference(quick):
            if self.detector is None or self.false_positive_rate is None:
                activations, flagged = quick(images).activations, torch.zeros_like(labels, dtype=torch.bool)
            else:
                output, scores = predict_with_scores(quick, images, self.detector)
                threshold = self.detector.threshold(self.false_positive_rate)
                activations, flagged = output.activations, scores.amax(1) > threshold
            check_finite(activations)
            return (activations.argmax(1) == labels).clone(), flagged.clone()

    def add_gradient(self, gradient: Float[Tensor, "b c h w"]) -> None:
        """Count the zeros of a gradient."""
        zero = gradient == 0
        self.zeros += int(zero.sum())
        self.pixels += zero.numel()
        self.without_gradient += int(zero.flatten(1).all(1).sum())

    def result(self, images: int, options: AttackOptions) -> UnderAttack:
        """Return the counts in per cent."""
        share = {key: 100 * right / images for key, right in self.right.items()}
        attacks = dict.fromkeys((attack, source) for attack, source, _ in self.right if attack not in ("clean", "full"))
        white_box_first = sorted(attacks, key=lambda attack: attack[1] is not None)
        curves = []
        for attack in white_box_first:
            keys = [(*attack, epsilon) for epsilon in options.epsilons]
            flagged = () if self.detector is None else tuple(self.flagged[key] for key in keys)
            accuracy, fooled = tuple(share[key] for key in keys), tuple(self.fooled[key] for key in keys)
            curves.append(AttackCurve(*attack, accuracy, fooled, flagged))
        return UnderAttack(
            clean=share["clean", None, 0.0],
            at_full_reach=share["full", None, 1.0],
            zero_gradient=100 * self.zeros / self.pixels,
            without_gradient=self.without_gradient,
            curves=tuple(curves),
            false_positives=None if self.detector is None else 100 * self.false_positives / images,
        )


def _search(options: AttackOptions, *place: int) -> dict[str, Any]:
    """Return steps, restarts, and starts that depend on the place alone, whatever else is attacked."""
    generator = torch.Generator().manual_seed(mixed_seed(options.seed, *place))
    return {"steps": options.steps, "restarts": options.restarts, "generator": generator}


def _attack_batch(
    models: Mapping[str, ImageClassifier],
    tallies: Mapping[str, _Tally],
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"],
    number: int,
    options: AttackOptions,
) -> Iterator[None]:
    """Run every attack on one batch; yield after each network at each ε, and after each at ε = 1."""
    for name, model in models.items():
        home = next(model.parameters()).device
        tallies[name].begin(model, images.to(home), labels.to(home))
    for place, (name, model) in enumerate(models.items()):
        device = next(model.parameters()).device
        x, y, tally = images.to(device), labels.to(device), tallies[name]
        tally.add_gradient(margin_gradient(model, x, y))
        for at, epsilon in enumerate(options.epsilons):
            searches = [_search(options, number, place, at, attack) for attack in range(3)]
            tally.add(("FGSM", None, epsilon), model, fgsm(model, x, y, epsilon), y)
            halved = bim(model, x, y, epsilon, steps=max(1, options.steps // 2))
            tally.add(("BIM", None, epsilon), model, halved, y)
            worst = pgd(model, x, y, epsilon, **searches[0])
            tally.add(("PGD", None, epsilon), model, worst, y)
            if has_class_capsules(model):
                tally.add(("vote", None, epsilon), model, vote_attack(model, x, y, epsilon, **searches[1]), y)
            if tally.detector is not None and tally.false_positive_rate is not None:
                hard = {**searches[2], "steps": 2 * options.steps, "false_positive_rate": tally.false_positive_rate}
                adapted = adaptive_attack(model, tally.detector, x, y, epsilon, **hard)
                tally.add(("adaptive", None, epsilon), model, adapted, y)
            for other, target in models.items():
                if other != name:
                    there = next(target.parameters()).device
                    tallies[other].add(("transfer", name, epsilon), target, worst.to(there), labels.to(there))
            yield
        hardest = _search(options, number, place, len(options.epsilons), 0)
        hardest |= {"steps": FULL_REACH_STEPS, "restarts": FULL_REACH_RESTARTS}
        reached = pgd(model, x, y, 1.0, **hardest)
        tally.add(("full", None, 1.0), model, reached, y)
        yield
