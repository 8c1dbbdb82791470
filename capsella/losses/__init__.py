"""Losses, each a mean over the images of a batch, and the counting of classification errors."""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.losses.functional import (
        Losses,
        MixupTargets,
        count_errors,
        cross_entropy,
        margin_loss,
        predicted_classes,
        reconstruction_loss,
        sigmoid_cross_entropy,
        spread_loss,
        top_classes,
        total_loss,
    )
    from capsella.losses.options import FOR_TWO_CLASSES, Classification, LossOptions
else:
    __getattr__ = lazy_imports(__name__, __file__)
