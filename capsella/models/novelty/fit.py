"""Fitting what is familiar to a network: gaussians on training images, and their thresholds on validation images."""

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.errors import check_argument
from capsella.models.base import ImageClassifier
from capsella.models.inference import inference
from capsella.models.novelty.fitted import Familiar, Novelty
from capsella.models.novelty.gaussians import ClassGaussian, fit_gaussian
from capsella.models.novelty.observe import observe, only_as_needed

MOST_TRAINING_IMAGES = 5000
FOLDS = 10
STEADY, MOST_CHANGE = 0.9, 0.5
"""Images are turned where so many validation images' answers then change by less than this: cells, but not digits."""
Batches = Iterable[tuple[Float[Tensor, "b c h w"], Int[Tensor, " b"]]]


def fit_novelty(model: ImageClassifier, training: Batches, validation: Batches) -> Novelty:
    """Gaussians from training images, as they are without random changes; thresholds from validation images.

    Args:
        model: trained; its mode is left as it was.
        training, validation: batches of images in [0, 1] on the model's device, and of their classes.

    Raises:
        ValueError: no images, or answers that are not finite.
    """
    gaussians = _gaussians(model, training)
    rows: dict[str, list[Tensor]] = {}
    with inference(model):
        for images, _ in validation:
            output, seen = observe(model, images, turn=True)
            predicted = output.activations.argmax(1)
            for name, values in seen.items():
                strangeness = gaussians[name].distance(values, predicted) if name in gaussians else values
                rows.setdefault(name, []).append(strangeness.cpu())
    check_argument(
        any(len(part) for parts in rows.values() for part in parts), "be of at least one image", validation=0
    )
    columns = {name: torch.cat(parts).clone() for name, parts in rows.items()}
    check_argument(all(bool(one.isfinite().all()) for one in columns.values()), "be finite", answers="NaN or infinity")
    if float(columns["turned"].quantile(STEADY)) >= MOST_CHANGE:
        del columns["turned"]
    familiar = {name: Familiar(column.sort().values) for name, column in columns.items()}
    return Novelty(gaussians, familiar, largest_surprises(list(columns.values())).sort().values)


def largest_surprises(columns: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
    """The largest surprise of each validation image, beside those of the other folds.

    Beside itself it would be less surprising than a new image is, and the more so the more scores there are.
    """
    number = len(columns[0])
    fold, largest = torch.arange(number) % min(FOLDS, number), torch.empty(number)
    for one in fold.unique():
        held = fold == one
        others = ~held if number > 1 else held
        beside = [Familiar(column[others].sort().values).surprise(column[held]) for column in columns]
        largest[held] = torch.stack(beside, 1).amax(1)
    return largest


def _gaussians(model: ImageClassifier, training: Batches) -> dict[str, ClassGaussian]:
    """Of all that is seen of an image but its reconstruction, which has a distance of its own."""
    quick = only_as_needed(model, None)
    rows: dict[str, list[Tensor]] = {}
    with inference(quick):
        for images, labels in training:
            _, seen = observe(quick, images, labels)
            for name, values in {**seen, "labels": labels}.items():
                rows.setdefault(name, []).append(values.cpu())
    check_argument(sum(map(len, rows.get("labels", ()))) > 0, "be of at least one image", training=0)
    columns = {name: torch.cat(parts).clone() for name, parts in rows.items()}
    labels = columns.pop("labels")
    return {name: fit_gaussian(column, labels, len(model.classes)) for name, column in columns.items()}
