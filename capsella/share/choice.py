"""Which test images go into a page: every class, then mistakes, then images of which no capsule is sure."""

from jaxtyping import Bool, Int
from torch import Tensor

from capsella.errors import check_minimum
from capsella.share.pool import Pool

SURE = 0.5
"""A capsule at least this active is sure."""


def choose_images(pool: Pool, most: int) -> list[int]:
    """At most `most` places: of each class the surest right image, mistakes from the surest, unsure images, the rest.

    Raises:
        ValueError: `most` below 1.
    """
    check_minimum(1, images=most)
    labels, right, sureness = pool.labels, pool.right, pool.activations.amax(1)
    by_sureness = sureness.argsort(descending=True, stable=True)
    first = []
    for label in range(pool.activations.shape[1]):
        of_class = by_sureness[(right & (labels == label).any(1))[by_sureness]]
        first += of_class[:1].tolist()
    wrong = by_sureness[~right[by_sureness]].tolist()
    unsure = by_sureness[(sureness < SURE)[by_sureness]].tolist()
    # Of the rest, evenly through the classes: the next right image of each.
    rest = sorted(range(len(labels)), key=lambda place: (_rank(labels, right, place), labels[place].tolist()))
    room = max(2, most - len(first))
    order = [*first[: max(1, most - 2)], *wrong[: room // 2 + 1], *unsure[: room // 2 + 1], *rest]
    chosen = list(dict.fromkeys(order))[:most]
    return sorted(chosen, key=lambda place: (not right[place], labels[place].tolist(), place))


def _rank(labels: Int[Tensor, "n k"], right: Bool[Tensor, " n"], place: int) -> int:
    """How many images of the same class stand before this one; mistakes come last."""
    return int((labels[:place, 0] == labels[place, 0]).sum()) + (0 if right[place] else len(labels))
