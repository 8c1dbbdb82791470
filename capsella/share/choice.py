"""Which test images go into a page: every class, then mistakes, then images of which no capsule is sure."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from capsella.errors import at_least

SURE = 0.5
"""A capsule at least this active is sure."""


def choose_images(activations: Float[Tensor, "n classes"], labels: Int[Tensor, "n"], most: int) -> list[int]:
    """At most `most` places: of each class the surest right image, mistakes from the surest, unsure images, the rest.

    Raises:
        ValueError: `most` below 1.
    """
    at_least(1, images=most)
    sureness, predicted = activations.max(1)
    right: Bool[Tensor, "n"] = predicted == labels
    by_sureness = sureness.argsort(descending=True, stable=True)
    first = []
    for label in range(activations.shape[1]):
        of_class = by_sureness[(right & (labels == label))[by_sureness]]
        first += of_class[:1].tolist()
    wrong = by_sureness[~right[by_sureness]].tolist()
    unsure = by_sureness[(sureness < SURE)[by_sureness]].tolist()
    # Of the rest, evenly through the classes: the next right image of each.
    rest = sorted(range(len(labels)), key=lambda place: (_rank(labels, right, place), int(labels[place])))
    room = max(2, most - len(first))
    order = [*first[: max(1, most - 2)], *wrong[: room // 2 + 1], *unsure[: room // 2 + 1], *rest]
    chosen = list(dict.fromkeys(order))[:most]
    return sorted(chosen, key=lambda place: (not right[place], int(labels[place]), place))


def _rank(labels: Tensor, right: Tensor, place: int) -> int:
    """How many images of the same class stand before this one; mistakes come last."""
    return int((labels[:place] == labels[place]).sum()) + (0 if right[place] else len(labels))
