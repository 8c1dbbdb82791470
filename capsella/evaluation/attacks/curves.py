"""How often networks are still right as attacks may change pixels more and more, each network beside the others."""

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
from capsella.evaluation.attacks.adaptive import adaptive_attack
from capsella.evaluation.attacks.log_odds import has_class_capsules
from capsella.evaluation.attacks.methods import bim, fgsm, margin_gradient, pgd, vote_attack
from capsella.models import ImageClassifier, Novelty
from capsella.models.inference import inference
from capsella.models.novelty.observe import answer, only_as_needed
from capsella.seeds import mixed_seed
from capsella.types import check_finite

FULL_REACH_STEPS, FULL_REACH_RESTARTS = 40, 5
"""Of the check at ε = 1, whatever the attacks are allowed: a weak attack must not look like a masked gradient.
Images that are fooled are spared the rest, so that it costs little where nothing is masked."""


@dataclass(frozen=True)
class AttackOptions:
    """How hard to attack.

    Raises:
        ValueError: a number outside its range, no ε, or ε that do not rise.
    """

    epsilons: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4)
    """Largest changes of a pixel, of images in [0, 1]; rising."""
    steps: int = 20
    """Steps of PGD and of the vote attack; BIM takes half of them, at least one."""
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

    attack: FGSM, BIM, PGD, vote, adaptive or transfer. source: for a transfer, the network whose PGD images these are.
    accuracy: at each ε, the share of all images classified right, in per cent.
    fooled, flagged: at each ε, the images that were right without the attack and are wrong under it, and those of them
        that are not known; `flagged` is empty where nothing says which are known.
    """

    attack: str
    source: str | None
    accuracy: tuple[float, ...]
    fooled: tuple[int, ...] = ()
    flagged: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """As in a table."""
        return self.attack if self.source is None else f"{self.attack} from {self.source}"


@dataclass(frozen=True)
class UnderAttack:
    """One network under every attack.

    clean: accuracy without an attack, in per cent.
    at_full_reach: accuracy under PGD at ε = 1, in per cent. Every image is within reach there, so that anything above 0
        is the attack's failure, not the network's strength: usually a masked gradient.
    zero_gradient: share of pixels whose gradient is exactly 0, in per cent (Hinton et al. 2018, section 6).
    without_gradient: how many images have no gradient at all.
    curves: one an attack.
    false_alarms: share of the images that are not known without an attack, in per cent; None where nothing says so.
    """

    clean: float
    at_full_reach: float
    zero_gradient: float
    without_gradient: int
    curves: tuple[AttackCurve, ...]
    false_alarms: float | None = None

    @property
    def is_masked(self) -> bool:
        """Whether the attacks' gradients cannot be trusted: the curves then say nothing of the network.

        An image without any gradient is a sign of its own: at ε = 1 random starts alone may fool a network.
        """
        return self.at_full_reach > 0 or self.without_gradient > 0

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {
            "clean_accuracy_percent": self.clean,
            "pgd_accuracy_at_epsilon_1_percent": self.at_full_reach,
            "zero_gradient_percent": self.zero_gradient,
            "images_without_gradient": self.without_gradient,
            "masked": self.is_masked,
            **({} if self.false_alarms is None else {"not_known_without_attack_percent": self.false_alarms}),
            "attacks": [
                {
                    "attack": curve.attack,
                    "source": curve.source,
                    "accuracy_percent": list(curve.accuracy),
                    "fooled": list(curve.fooled),
                    **({"fooled_and_not_known": list(curve.flagged)} if curve.flagged else {}),
                }
                for curve in self.curves
            ],
        }


def attack_networks(
    models: Mapping[str, ImageClassifier],
    images: ImageSet,
    options: AttackOptions = AttackOptions(),
    progress: bool = False,
    refuse: float | None = None,
) -> dict[str, UnderAttack]:
    """Attack each network with FGSM, BIM and PGD; with the vote attack where it has capsules; with others' PGD images.

    With `refuse`, also with the adaptive attack, and it is counted which of the attacks that succeed are found out.

    Args:
        models: by name, of the same classes and image size; left as they are.
        images: labelled images.
        options: how hard to attack.
        progress: show a bar on standard error.
        refuse: the share of usual images that may be refused as not known, for models with `novelty` and validation
            images enough for it.

    Raises:
        ValueError: no model, no images, or images of other classes, size or channels than a model's.
    """
    if not models or len(images) == 0:
        raise ValueError(f"models, images: must be at least one, got {len(models)} and {len(images)}")
    for name, model in models.items():
        if model.classes != images.classes:
            raise ArgumentError("images.classes", f"be {name}'s {model.classes}", images.classes)
        model.check_images(images.images[:1])
    known = {
        name: model.novelty for name, model in models.items() if model.novelty and model.novelty.can_refuse(refuse)
    }
    tallies = {name: _Tally(known.get(name), refuse) for name in models}
    rounds = -(-len(images) // options.batch_size) * len(models) * (len(options.epsilons) + 1)
    console = Console(stderr=True)
    with Progress(console=console, disable=not (progress and console.is_terminal), transient=True) as bar:
        task = bar.add_task("attack", total=rounds)
        for number, batch in enumerate(batches(images, options.batch_size)):
            for _ in _attack_batch(models, tallies, batch.images, batch.labels, number, options):
                bar.advance(task)
    return {name: tally.result(len(images), options) for name, tally in tallies.items()}


Key = tuple[str, str | None, float]
"""Attack, source, ε."""


@dataclass
class _Tally:
    """By attack, source and ε: images classified right, fooled and found out; and what the gradients hold."""

    novelty: Novelty | None = None
    refuse: float | None = None
    right: Counter[Key] = field(default_factory=Counter)
    fooled: Counter[Key] = field(default_factory=Counter)
    flagged: Counter[Key] = field(default_factory=Counter)
    was_right: Bool[Tensor, " b"] = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    false_alarms: int = 0
    zeros: int = 0
    pixels: int = 0
    without_gradient: int = 0

    def begin(self, model: ImageClassifier, images: Tensor, labels: Tensor) -> None:
        """A batch without an attack."""
        right, strange = self._judge(model, images, labels)
        self.was_right = right
        self.right["clean", None, 0.0] += int(right.sum())
        self.false_alarms += int(strange.sum())

    def add(self, key: Key, model: ImageClassifier, images: Tensor, labels: Tensor) -> None:
        """Count the images of that batch, attacked, that `model` classifies right, and those that fool it."""
        right, strange = self._judge(model, images, labels)
        fooled = self.was_right & ~right
        self.right[key] += int(right.sum())
        self.fooled[key] += int(fooled.sum())
        self.flagged[key] += int((fooled & strange).sum())

    def _judge(self, model: ImageClassifier, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Which are classified right, and which are not known."""
        quick = only_as_needed(model, self.novelty)
        with inference(quick):
            if self.novelty is None or self.refuse is None:
                activations, strange = quick(images).activations, torch.zeros_like(labels, dtype=torch.bool)
            else:
                output, surprises = answer(quick, images, self.novelty)
                activations, strange = output.activations, surprises.amax(1) > self.novelty.threshold(self.refuse)
            check_finite(activations)
            return (activations.argmax(1) == labels).clone(), strange.clone()

    def add_gradient(self, gradient: Float[Tensor, "b c h w"]) -> None:
        """Count zeros."""
        zero = gradient == 0
        self.zeros += int(zero.sum())
        self.pixels += zero.numel()
        self.without_gradient += int(zero.flatten(1).all(1).sum())

    def result(self, images: int, options: AttackOptions) -> UnderAttack:
        """Counts as shares in per cent."""
        share = {key: 100 * right / images for key, right in self.right.items()}
        attacks = dict.fromkeys((attack, source) for attack, source, _ in self.right if attack not in ("clean", "full"))
        white_box_first = sorted(attacks, key=lambda attack: attack[1] is not None)
        curves = []
        for attack in white_box_first:
            keys = [(*attack, epsilon) for epsilon in options.epsilons]
            flagged = () if self.novelty is None else tuple(self.flagged[key] for key in keys)
            accuracy, fooled = tuple(share[key] for key in keys), tuple(self.fooled[key] for key in keys)
            curves.append(AttackCurve(*attack, accuracy, fooled, flagged))
        return UnderAttack(
            clean=share["clean", None, 0.0],
            at_full_reach=share["full", None, 1.0],
            zero_gradient=100 * self.zeros / self.pixels,
            without_gradient=self.without_gradient,
            curves=tuple(curves),
            false_alarms=None if self.novelty is None else 100 * self.false_alarms / images,
        )


def _search(options: AttackOptions, *place: int) -> dict[str, Any]:
    """Steps, restarts, and starts that depend on the place alone, whatever else is attacked."""
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
    """Every attack on one batch; yields after each network at each ε, and after each network at full reach."""
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
            if tally.novelty is not None and tally.refuse is not None:
                hard = {**searches[2], "steps": 2 * options.steps, "refuse": tally.refuse}
                tally.add(
                    ("adaptive", None, epsilon), model, adaptive_attack(model, tally.novelty, x, y, epsilon, **hard), y
                )
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
