"""What is fitted to a model's weights (its confidence, what is familiar to it), and whether they are still the same."""

import hashlib
from pathlib import Path
from typing import Protocol, TypeVar

from torch import nn

from capsella.errors import warn_once
from capsella.models.saving import hash_weights


class Fitted(Protocol):
    """Anything that was fitted to weights."""

    @property
    def weights(self) -> str | None:
        """Their SHA-256, where known."""


Of = TypeVar("Of", bound=Fitted)


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of a model's weights, with their names."""
    digest = hashlib.sha256()
    hash_weights(model, digest)
    return digest.hexdigest()


def is_of(model: nn.Module, fitted: Fitted) -> bool:
    """Whether a model has the weights that something was fitted to; true where that is not known."""
    return fitted.weights in (None, weights_digest(model))


def weights_to_write(model: nn.Module, fitted: Fitted | None, path: Path) -> str | None:
    """The digest of the weights that `fitted` is of; None, and no file at `path`, where there is nothing to be kept.

    Warns where the weights have changed since.
    """
    if fitted is not None:
        if is_of(model, fitted):
            return weights_digest(model)
        warn_once(str(path), f"the weights have changed since it was fitted: saved without {path.name}")
    path.unlink(missing_ok=True)
    return None


def if_current(model: nn.Module, fitted: Of, path: Path) -> Of | None:
    """What was read from `path`; None, with a warning, where it is of other weights than the model's."""
    if fitted.weights == weights_digest(model):
        return fitted
    warn_once(str(path), f"{path} was fitted to other weights, so it is not used; capsella calibrate fits it anew")
    return None
