"""Which of several answers are best where more than one number is to be small."""

from collections.abc import Sequence

Values = Sequence[float]


def is_better(one: Values, other: Values) -> bool:
    """Nowhere worse, and somewhere better (Pareto).

    >>> is_better((1, 2), (1, 3)), is_better((1, 3), (2, 2)), is_better((1, 2), (1, 2))
    (True, False, False)
    """
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def front(points: Sequence[Values]) -> list[int]:
    """Which points no other one is better than, in their order.

    >>> front([(1, 5), (2, 2), (3, 3), (2, 2)])
    [0, 1, 3]
    """
    return [n for n, one in enumerate(points) if not any(is_better(other, one) for other in points)]


def ranks(points: Sequence[Values]) -> list[int]:
    """0 for the front, 1 for the front of the others, and so on (non-dominated sorting, Deb et al. 2002).

    >>> ranks([(1, 5), (2, 2), (3, 3), (9, 9)])
    [0, 0, 1, 2]
    >>> ranks([(2,), (1,), (2,)]), ranks([(2, 0), (1, 0), (2, 0)])
    ([1, 0, 1], [1, 0, 1])
    """
    if points and len(points[0]) == 1:  # far quicker, with the same ranks
        of_value = {value: rank for rank, value in enumerate(sorted({one[0] for one in points}))}
        return [of_value[one[0]] for one in points]
    rank, found, left = 0, [0] * len(points), list(range(len(points)))
    while left:
        best = {left[n] for n in front([points[n] for n in left])}
        for n in best:
            found[n] = rank
        left, rank = [n for n in left if n not in best], rank + 1
    return found
