"""Accuracy of networks under attack, as a function of the largest change of a pixel."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
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
    vote_log_odds,
)
from capsella.models import ImageClassifier
from capsella.models.inference import device_of, inference, predict_with_scores, without_unused_decoder
from capsella.progress import tracked
from capsella.seeds import mixed_seed
from capsella.types import check_finite

# PGD for the check at ε = 1, fixed so that a weak attack does not look like a masked gradient. It costs little if
# nothing is masked, because misclassified images skip the later restarts.
FULL_REACH = {"steps": 40, "restarts": 5}
Key = tuple[str, str | None, float]  # attack, source, ε


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
