"""What public routing functions check, because broadcasting would hide it."""

from numbers import Integral

from torch import Tensor

from capsella.errors import ArgumentError, check_argument


def check_votes(votes: Tensor) -> None:
    """Votes are [b i j d], floating point, with at least one child, parent and pose element."""
    if votes.ndim != 4:
        raise ValueError(f"votes: must have the four axes [b i j d], got {votes.ndim} axes, shape {tuple(votes.shape)}")
    if not votes.is_floating_point():
        raise ArgumentError("votes", "be floating point", votes.dtype)
    if 0 in votes.shape[1:]:
        raise ValueError(
            f"votes: must have at least one child, parent and pose element, got shape {tuple(votes.shape)}"
        )


def check_iterations(iterations: int) -> None:
    """A whole number, and at least 1."""
    whole = isinstance(iterations, Integral) and not isinstance(iterations, bool)
    check_argument(whole and iterations >= 1, "be a whole number of at least 1", iterations=iterations)


def check_shape(argument: str, tensor: Tensor, shape: tuple[int, ...], axes: str) -> None:
    """`tensor` has exactly `shape`; `axes` names it for the reader, as in "[j d]"."""
    if tuple(tensor.shape) != shape:
        raise ArgumentError(f"{argument}", f"have shape {axes} = {shape}", tuple(tensor.shape))
