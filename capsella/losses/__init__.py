"""Losses, each the mean over the batch of one number an image; and what counts as an error."""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.losses.classification import cross_entropy, margin_loss, multi_hot, sigmoid_cross_entropy, spread_loss
    from capsella.losses.errors import count_errors, strongest, strongest_first
    from capsella.losses.options import FOR_TWO_CLASSES, Classification, LossOptions
    from capsella.losses.total import Losses, Others, reconstruction_loss, total_loss
else:
    __getattr__ = lazy_imports(__name__, __file__)
