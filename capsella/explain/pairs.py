"""What a model makes of two overlaid images: one reconstruction from the capsule of each class it found."""

from pathlib import Path

import torch
from jaxtyping import Integer
from matplotlib.figure import Figure
from torch import Tensor

from capsella.data.pairs import PairSet
from capsella.evaluation.accuracy import Evaluation, evaluate
from capsella.evaluation.inference import check_decoder, inference
from capsella.explain.image_grids import overlay_figure
from capsella.explain.plots import write_png
from capsella.explain.reconstruction import pick_examples
from capsella.models import ImageClassifier

LOOKED_AT = 1000  # pairs among which `explain_pairs` looks for right ones and mistakes


def pair_name(names: tuple[str, ...], classes: Integer[Tensor, "*k"]) -> str:
    """The name of one class, or those of two, as in 3 + 8."""
    return " + ".join(names[k] for k in classes.flatten().tolist())


def pairs_figure(
    model: ImageClassifier, pairs: PairSet, evaluation: Evaluation, picked: Integer[Tensor, "picked"]
) -> Figure:
    """The pairs at `picked`, beside what the capsules of the two predicted classes draw (Sabour et al. 2017, Fig. 5).

    Raises:
        ValueError: a model without a decoder.
    """
    check_decoder(model, "reconstructions")
    images, labels, _ = pairs.take(picked)
    predictions = evaluation.predictions[picked]
    with inference(model) as device:
        capsules = model.encode(images.float().to(device) / 255)
        drawn = [model.decode(capsules, column.to(device)).float().cpu() for column in predictions.unbind(1)]
    return overlay_figure(
        images.numpy() / 255,
        pairs.parts(pairs.draw(picked)).numpy() / 255,
        torch.stack(drawn, 1).numpy(),
        [pair_name(pairs.classes, both) for both in labels],
        [pair_name(pairs.classes, both) for both in predictions],
    )


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
