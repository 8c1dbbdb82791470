"""Inputs beside what the decoder makes of their capsules, for images the model got right and images it got wrong."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.evaluation import Evaluation
from capsella.models import ImageClassifier
from capsella.models.inference import check_decoder, inference


@dataclass(frozen=True, eq=False)
class Reconstructions:
    """Images [n c h w] in [0, 1], and their reconstructions from the capsule of the true and of the predicted class.

    labels, predictions: [n], class indices.
    """

    images: Float[Tensor, "n c h w"]
    from_true: Float[Tensor, "n c h w"]
    from_predicted: Float[Tensor, "n c h w"]
    labels: Int[Tensor, "n"]
    predictions: Int[Tensor, "n"]


def reconstruct(model: ImageClassifier, images: Float[Tensor, "n c h w"], labels: Int[Tensor, "n"]) -> Reconstructions:
    """Decode each image twice: from the capsule of its true class, and from the longest one.

    Where the prediction is right the two are the same. Where it is wrong, the second shows what the model saw.

    Raises:
        ValueError: a model without a decoder, images of another shape, not a label an image.
    """
    check_decoder(model, "reconstructions")
    model.check_images(images)
    if labels.shape != images.shape[:1]:
        raise ValueError(f"labels: must be [n] = ({len(images)},), got {tuple(labels.shape)}")
    with inference(model) as device:
        capsules = model.encode(images.to(device))
        predictions = capsules.activations[:, 0, 0].argmax(1)
        from_true = model.decode(capsules, labels.to(device))
        from_predicted = model.decode(capsules, predictions)
    # Cloned outside inference mode: ordinary tensors.
    from_true, from_predicted = from_true.float().cpu().clone(), from_predicted.float().cpu().clone()
    return Reconstructions(images, from_true, from_predicted, labels, predictions.cpu().clone())


def pick_examples(evaluation: Evaluation, right: int = 6, wrong: int = 6) -> Int[Tensor, "picked"]:
    """Indices of up to `right` images classified right, then up to `wrong` mistakes, the most confident first.

    The right ones are not chosen for their looks: the first of each class in the order of the set, class after class,
    then the second of each. A pair is of its first image's class.
    """
    hits = evaluation.correct.nonzero()[:, 0]
    labels = evaluation.labels.reshape(len(evaluation.labels), -1)[:, 0]
    turn = torch.zeros_like(labels)  # [n]: this is the how-many-th hit of its class
    for label in range(len(evaluation.classes)):
        of_class = hits[labels[hits] == label]
        turn[of_class] = torch.arange(len(of_class))
    by_turn = hits[(turn[hits] * len(evaluation.classes) + labels[hits]).argsort()]
    return torch.cat([by_turn[:right], evaluation.mistakes()[:wrong]])
