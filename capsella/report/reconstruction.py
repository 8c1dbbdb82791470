"""Images beside what the decoder makes of their capsules: those the model got right, got wrong, or found overlaid."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int, Int64, Integer
from matplotlib.figure import Figure
from torch import Tensor

from capsella.data import PairSet
from capsella.errors import ArgumentError, check_argument
from capsella.evaluation import Evaluation, evaluate
from capsella.models import ImageClassifier
from capsella.models.inference import check_decoder, inference
from capsella.report.figures import write_png
from capsella.report.image_grids import overlay_figure

LOOKED_AT = 1000  # pairs among which `explain_pairs` looks for right ones and mistakes


@dataclass(frozen=True, eq=False)
class Reconstructions:
    """Images [n c h w] in [0, 1], and their reconstructions from the capsule of the true and of the predicted class.

    labels, predictions: [n], class indices.
    """

    images: Float[Tensor, "n c h w"]
    from_true: Float[Tensor, "n c h w"]
    from_predicted: Float[Tensor, "n c h w"]
    labels: Int[Tensor, " n"]
    predictions: Int[Tensor, " n"]


def reconstruct(model: ImageClassifier, images: Float[Tensor, "n c h w"], labels: Int[Tensor, " n"]) -> Reconstructions:
    """Decode each image twice: from the capsule of its true class, and from the longest one.

    Where the prediction is right the two are the same. Where it is wrong, the second shows what the model saw.

    Raises:
        ValueError: a model without a decoder, images of another shape, not a label an image.
    """
    check_decoder(model, "reconstructions")
    model.check_images(images)
    if labels.shape != images.shape[:1]:
        raise ArgumentError("labels", f"be [n] = ({len(images)},)", tuple(labels.shape))
    with inference(model) as device:
        capsules = model.encode(images.to(device))
        predictions = capsules.activations[:, 0, 0].argmax(1)
        from_true = model.decode(capsules, labels.to(device))
        from_predicted = model.decode(capsules, predictions)
    # Cloned outside inference mode: ordinary tensors.
    from_true, from_predicted = from_true.float().cpu().clone(), from_predicted.float().cpu().clone()
    return Reconstructions(images, from_true, from_predicted, labels, predictions.cpu().clone())


def share_nearest_own(
    model: ImageClassifier, images: Integer[Tensor, "n c h w"], labels: Int[Tensor, " n"], batch_size: int = 64
) -> float:
    """The share of images whose reconstruction shows this image: no other one of these is as near to it, by pixels.

    From the capsule of the true class. By chance it is 1/n; a decoder that draws the same for a whole class has one
    image right of each.

    Args:
        images: grey levels 0 to 255.
        batch_size: images decoded and compared at a time.

    Raises:
        ValueError: a model without a decoder, images of another shape, not a label an image, no images.
    """
    check_argument(len(images) > 0, "be at least one", images=len(images))
    right = 0
    for first in range(0, len(images), batch_size):
        part = slice(first, first + batch_size)
        drawn = reconstruct(model, images[part].float() / 255, labels[part]).from_true.flatten(1)
        others = [torch.cdist(drawn, some.flatten(1).float() / 255) for some in images.split(batch_size)]
        distances = torch.cat(others, 1)  # [batch n]
        own = torch.arange(first, first + len(drawn))
        right += int((distances.argmin(1) == own).sum())
    return right / len(images)


def pick_examples(evaluation: Evaluation, right: int = 6, wrong: int = 6) -> Int[Tensor, " picked"]:
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


def pair_name(names: tuple[str, ...], classes: Integer[Tensor, "*k"]) -> str:
    """The name of one class, or those of two, as in 3 + 8."""
    return " + ".join(names[k] for k in classes.flatten().tolist())


def pairs_figure(
    model: ImageClassifier, pairs: PairSet, evaluation: Evaluation, picked: Integer[Tensor, " picked"]
) -> Figure:
    """The pairs at `picked`, beside what capsules draw (Sabour et al. 2017, Fig. 5).

    Those of the two predicted classes, together and each alone; those of the two true ones; and, for control, those of
    the two most active classes that are neither: a network that fits any class to any image draws the image there, too.

    Raises:
        ValueError: a model without a decoder.
    """
    check_decoder(model, "reconstructions")
    images, labels, _ = pairs.take(picked)
    predictions = evaluation.predictions[picked]
    others, there = _others(evaluation.activations[picked], labels, predictions)
    with inference(model) as device:
        capsules = model.encode(images.float().to(device) / 255)
        drawn, from_true, from_others = (
            torch.stack([model.decode(capsules, column.to(device)).float().cpu() for column in classes.unbind(1)], 1)
            for classes in (predictions, labels, others)
        )
    return overlay_figure(
        images.numpy() / 255,
        pairs.parts(pairs.draw(picked)).numpy() / 255,
        drawn.numpy(),
        from_true.numpy(),
        (from_others * there[:, :, None, None, None]).numpy(),
        [pair_name(pairs.classes, both) for both in labels],
        [pair_name(pairs.classes, both) for both in predictions],
    )


def _others(
    activations: Float[Tensor, "n classes"], labels: Int64[Tensor, "n 2"], predictions: Int64[Tensor, "n 2"]
) -> tuple[Int64[Tensor, "n 2"], Bool[Tensor, "n 2"]]:
    """The two most active classes that are neither true nor predicted, and where there are as many."""
    strength = activations.scatter(1, torch.cat([labels, predictions], 1), -torch.inf)
    strongest = strength.topk(2, 1)
    return strongest.indices, strongest.values > -torch.inf


def explain_pairs(model: ImageClassifier, pairs: PairSet, out: Path) -> Path:
    """Draw pairs that the model got right and its most confident mistakes, of the first 1,000; returns the picture.

    Raises:
        ValueError: a model without a decoder.
        CapsellaError: no space on the disk.
    """
    check_decoder(model, "reconstructions")
    looked_at = pairs.subset(torch.arange(min(len(pairs), LOOKED_AT)))
    evaluation = evaluate(model, looked_at)
    path = out / "pairs.png"
    write_png(pairs_figure(model, looked_at, evaluation, pick_examples(evaluation)), path)
    return path
