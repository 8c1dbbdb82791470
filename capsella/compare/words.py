"""Sentences and rules that both verdicts share, on one split and over folds."""

from collections.abc import Sequence
from typing import Literal

from capsella.errors import pluralize
from capsella.evaluation import FoldInterval, Interval, points
from capsella.training.config import Balance

Winner = Literal["capsules", "CNN"]
Either = Interval | FoldInterval
ENOUGH_EPOCHS = 12
"""The slope of the last third of fewer epochs is of three points or less: it seldom shows what still falls."""


def validation_head(balance: Balance) -> str:
    """The head of the column of validation errors, by which networks are chosen."""
    return "validation error %" if balance == "none" else "balanced validation error %"


def winner_of(difference: Either) -> Winner | None:
    """The kind with the higher accuracy, by the interval of capsules less CNN; None where it holds 0."""
    return "capsules" if difference.low > 0 else "CNN" if difference.high < 0 else None


def wins(winner: Winner, capsules: str, cnn: str, difference: Either, over: str = "") -> str:
    """The sentence that says which network wins; `over`: what its interval is over."""
    best, other, sign = (capsules, cnn, 1) if winner == "capsules" else (cnn, capsules, -1)
    ends = sorted((sign * difference.low, sign * difference.high))
    kind = "The capsule network" if winner == "capsules" else "The CNN"
    mean, low, high = (points(share, signed=False) for share in (sign * difference.estimate, *ends))
    return f"{kind} wins: {best} is right {mean} points more often than {other} (95 % interval{over} {low} to {high})."


def still_learning(networks: Sequence[str], unfinished: Sequence[str]) -> str:
    """What a headline says of the networks that were not trained to the end; nothing where all were."""
    early = [name for name in networks if name in unfinished]
    return f" But {' and '.join(early)} still learned when the training ended." if early else ""


def trained_long(asked: bool, without: Sequence[str], epochs: int) -> str:
    """What is said where no curve fell clearly at the end of the training.

    asked: whether the curves of any network can tell. without: the networks whose curves cannot.
    """
    if not asked:
        return (
            f"Whether the training of {pluralize(epochs, 'epoch')} was long enough cannot be told: the learning rate "
            "of all networks falls to nothing as a cosine, which brings every curve down. Twice the epochs, in another "
            "--out, would show it."
            + ("" if epochs >= ENOUGH_EPOCHS else " So few epochs seldom train a network to its end.")
        )
    fell = f"No network's training loss or error still fell clearly at the end of its {pluralize(epochs, 'epoch')}."
    return fell + not_asked(without) + too_few_to_tell(epochs)


def not_asked(networks: Sequence[str]) -> str:
    """What is to be added where the curves of some networks cannot tell whether they still learned."""
    if not networks:
        return ""
    names = " and ".join(networks) if len(networks) < 3 else f"{', '.join(networks[:-1])} and {networks[-1]}"
    return f" Not asked of {names}: a learning rate that falls to nothing as a cosine brings every curve down."


def too_few_to_tell(epochs: int) -> str:
    """What is to be added where a curve is too short to tell whether it still falls."""
    return "" if epochs >= ENOUGH_EPOCHS else " So few hardly tell: look at the curves."
