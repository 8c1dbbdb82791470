"""`python -m tools.routing_pictures RUNS docs/pictures`: what each routing does with one image, a picture each.

Trains the rows of the routing benchmark that route for a few hundred steps on smallNORB, in the folder RUNS; finished
runs are read.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from rich.console import Console

from capsella.data import load_data, single_images
from capsella.experiments import Runner
from capsella.layers import ClusterCapsules
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import inference
from capsella.papers.budget import Budget
from capsella.papers.routing_benchmark.datasets import CNNS, BenchmarkRow, datasets_on, rows_on
from capsella.report.figures import write_png
from capsella.report.image_figures import show
from capsella.report.routing_views import routed_layers
from capsella.routing import cluster_routing, record
from capsella.training import AugmentOptions, load_run

SOURCE = "smallnorb-jpeg"
SHORT = Budget(
    epochs=3, epoch_images=3200, batch_size=32, validation_per_class=20, test_per_class=20, cosine=True, ema=0.98
)  # 300 steps of 32 images
IMAGE = 87
"""Of the test images."""


def rows() -> list[BenchmarkRow]:
    """Return the routings of the benchmark for a short training on unchanged images, without uniform couplings."""
    ((dataset, source),) = datasets_on(SOURCE)
    every = rows_on(dataset, source, "full")
    plain = [replace(row, recipe=replace(row.recipe, augment=AugmentOptions())) for row in every]
    shown = [row for row in plain if row.label[1] not in CNNS and not row.label[1].endswith(", uniform")]
    return [replace(row, recipe=SHORT.limit(row.recipe)) for row in shown]


def class_couplings(model: ImageClassifier, image: Float[torch.Tensor, "c h w"]) -> Float[np.ndarray, "i j"]:
    """How much of each child goes to each class, after the last iteration.

    Cluster routing has no couplings: instead the weights with which the child types compete for a class, as means over
    the elements of its pose.
    """
    assert isinstance(model, CapsuleClassifier)
    last = model.last_layer()
    with inference(model), record() as traces:
        if isinstance(last, ClusterCapsules):
            children = model.capsule_layers[:-1](model.primary(model.backbone(image[None])))
            weights = cluster_routing(last.cast_votes(children).flatten(4)).weights
            return weights.mean(3)[0].numpy()
        model(image[None])
        return traces[-1].couplings[-1][0].float().numpy()


def draw(model: ImageClassifier, image: Float[torch.Tensor, "c h w"], label: int, title: str) -> Figure:
    """Return the image, what went to its class over the image, and the couplings of the class capsules."""
    figure = Figure(figsize=(6.4, 2.3), layout="constrained")
    picture, over, couplings = figure.subplots(1, 3, width_ratios=(1, 1, 1.5))
    pixels = image[:1].permute(1, 2, 0).numpy()
    show(picture, pixels)
    picture.set_title(f"{model.classes[label]}, left camera", fontsize=8)
    layers = routed_layers(model, image)
    show(over, pixels * 0.7)
    over.set_title(f"what went to {model.classes[label]}", fontsize=8)
    if layers:
        to_class = layers[-1].evidence[-1, ..., label].sum(2)
        over.imshow(layers[-1].fields.spread(to_class, pixels.shape[:2]), cmap="inferno", alpha=0.6, vmin=0)
    else:
        over.text(0.5, 0.5, "no couplings\nof single capsules", ha="center", transform=over.transAxes, color="white")
    shares = class_couplings(model, image)
    drawn = couplings.imshow(shares.T, aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    couplings.set_yticks(range(len(model.classes)), model.classes, fontsize=7)
    couplings.set_xticks([])
    couplings.set_xlabel(f"{len(shares)} children", fontsize=8)
    couplings.set_title(title, fontsize=8)
    figure.colorbar(drawn, ax=couplings, fraction=0.05).ax.tick_params(labelsize=7)
    return figure


def main(runs: Path, pictures: Path) -> None:
    """Train what is missing, and write a picture a row."""
    console = Console()
    every = rows()
    Runner(runs, console).results(every, (0,))
    images = single_images(load_data(every[0].recipe.data).test, "pictures")
    for row in every:
        model = load_run(row.folder(runs, 0)).model
        image, label = images.images[IMAGE].float() / 255, int(images.labels[IMAGE])
        name = row.label[1]
        head = "weights of child types" if name == "cluster" else "couplings of the class capsules"
        write_png(draw(model, image, label, head), pictures / f"routing-{name.replace(' ', '-')}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.routing_pictures", description=__doc__)
    for name in ("runs", "pictures"):
        parser.add_argument(name, metavar=name.upper(), type=Path)
    main(**vars(parser.parse_args()))
