"""What poses know about cells: linear probes for the expert attributes of WBCAtt (Tsutsui et al. 2023).

`python -m tools.cell_attributes CAPSULES CNN [--out FILE]` takes two runs trained on training images of `pbc`, and
probes four descriptions of each cell: its class alone (one-hot), and with the class the poses of all class capsules,
the CNN's feature maps (mean and standard deviation of each channel), or those of a frozen EfficientNet-Lite0. All
probes are the same logistic regression on at most 128 principal components, cross-validated on the 620 validation and
test images with attributes. An attribute follows from the class to a large part, so the gain over the class alone is
what a description knows about the single cell.

Single pose numbers are judged within each class: the number with the largest AUC on one half of the images is tested on
the other half, with Holm's correction over all attributes and classes.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.stats import mannwhitneyu
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn.functional import one_hot

from capsella import create_model
from capsella.data import ImageSet, NamedData, load_data, single_images
from capsella.data.download import data_root
from capsella.data.images import join
from capsella.evaluation.statistics import holm_adjusted
from capsella.files import write_json
from capsella.layers import mask_all_but
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import inference, without_decoder
from capsella.papers.own_images import PRETRAINED
from capsella.training.trained import open_run
from capsella.uncertainty.ood import map_statistics

COMPONENTS = 128
UNKNOWN = 255  # the attribute of images that WBCAtt does not have
RESAMPLES = 400
RAREST = 10  # images of a value within a class, for a single number to be judged
Matrix = Float[np.ndarray, "images features"]


def describe(model: ImageClassifier, images: ImageSet) -> dict[str, Matrix]:
    """Return descriptions of each image by a network, by name.

    "class" is the predicted class as a one-hot vector. "maps" are the last feature maps, flattened; "statistics" are
    mean and standard deviation of each map. A capsule network also has the poses of its "primary capsules", the "poses"
    of all class capsules, and the "winning pose": the same numbers, with the poses of all but the predicted class set
    to zero, as a decoder gets them.
    """
    blocks: dict[str, list[Tensor]] = defaultdict(list)
    with inference(model):
        encoder, layers = without_decoder(model), model.feature_layers()
        for batch in images.images.split(64):
            pixels = batch.float() / 255
            output, maps = encoder(pixels), layers(pixels)
            predicted = output.activations.argmax(1)
            blocks["class"].append(one_hot(predicted, len(model.classes)))
            blocks["maps"].append(maps.flatten(1))
            blocks["statistics"].append(map_statistics(maps))
            if isinstance(model, CapsuleClassifier) and output.capsules is not None:
                blocks["primary capsules"].append(model.primary(maps).poses.flatten(1))
                blocks["poses"].append(output.capsules.poses.flatten(1))
                blocks["winning pose"].append(mask_all_but(output.capsules, predicted).flatten(1))
    return {name: torch.cat(parts).numpy() for name, parts in blocks.items()}


def probe(features: Matrix, values: Int[np.ndarray, " images"], classes: int) -> Int[np.ndarray, " images"]:
    """Return the values that a logistic regression predicts for images it was not fitted to.

    The last `classes` features are the one-hot class; the others are reduced to their principal components.
    """
    described = features.shape[1] - classes
    reduced = make_pipeline(StandardScaler(), PCA(min(COMPONENTS, described))) if described else "drop"
    columns = ColumnTransformer([("described", reduced, slice(described))], remainder="passthrough")
    regression = LogisticRegression(max_iter=2000, class_weight="balanced")
    search = GridSearchCV(regression, {"C": [0.001, 0.01, 0.1, 1.0]}, scoring="balanced_accuracy", cv=3)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    return cross_val_predict(make_pipeline(columns, StandardScaler(), search), features, values, cv=folds)


def gain_interval(
    values: Int[np.ndarray, " images"], ours: Int[np.ndarray, " images"], class_alone: Int[np.ndarray, " images"]
) -> list[float]:
    """Return the 95 % bootstrap interval over images of the gain in balanced accuracy, in points."""
    random, gains = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        drawn = random.integers(0, len(values), len(values))
        scores = [balanced_accuracy_score(values[drawn], predicted[drawn]) for predicted in (ours, class_alone)]
        gains.append(100 * (scores[0] - scores[1]))
    return [round(float(bound), 1) for bound in np.percentile(gains, (2.5, 97.5))]


def single_numbers(
    poses: Float[np.ndarray, "images classes numbers"],
    labels: Int[np.ndarray, " images"],
    attributes: dict[str, Int[np.ndarray, " images"]],
) -> list[dict[str, Any]]:
    """Return the pose number that best tells an attribute's two frequent values apart, for each class and attribute."""
    rows: list[dict[str, Any]] = []
    random = np.random.default_rng(0)
    half = random.permutation(len(labels)) % 2 == 0
    for name, values in attributes.items():
        for label in np.unique(labels):
            inside = labels == label
            counts = np.bincount(values[inside])
            frequent = np.argsort(counts)[::-1][:2]
            if len(counts) < 2 or counts[frequent[1]] < 2 * RAREST:
                continue
            chosen = inside & np.isin(values, frequent)
            truth, numbers = values == frequent[0], poses[:, label]
            first, second = chosen & half, chosen & ~half
            aucs = np.array([roc_auc_score(truth[first], column) for column in numbers[first].T])
            best = int(np.abs(aucs - 0.5).argmax())
            sign = 1 if aucs[best] >= 0.5 else -1
            tested = sign * numbers[second, best]
            rows.append(
                {
                    "attribute": name,
                    "class": int(label),
                    "number": best,
                    "images": int(second.sum()),
                    "auc": round(float(roc_auc_score(truth[second], tested)), 3),
                    "p": float(
                        mannwhitneyu(tested[truth[second]], tested[~truth[second]], alternative="greater").pvalue
                    ),
                }
            )
    for row, p in zip(rows, holm_adjusted([row["p"] for row in rows]), strict=True):
        row["p_holm"] = float(p)
    return rows


def main() -> None:
    """Probe, print the table, and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m tools.cell_attributes", description=__doc__)
    parser.add_argument("capsules", type=Path)
    parser.add_argument("cnn", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arrays = np.load(data_root() / "wbc/pbc_full_128.npz")
    known = np.isin(arrays["split"], (1, 2)) & (arrays["attribute"][:, 0] != UNKNOWN)
    codes = arrays["attribute"][known].astype(int)
    attributes = dict(zip(arrays["attribute_names"].tolist(), codes.T, strict=True))
    _, labels = np.unique(arrays["label"][known], return_inverse=True)
    classes = np.eye(labels.max() + 1)[labels]
    described: dict[str, Matrix] = {"class alone": np.zeros((len(labels), 0))}
    capsules, cnn = open_run(arguments.capsules).model, open_run(arguments.cnn).model
    lite0 = create_model("backbone_linear", classes=8, channels=3, image_size=128, backbone=PRETRAINED)
    for name, model in {"poses": capsules, "CNN features": cnn, "EfficientNet-Lite0": lite0}.items():
        splits = load_data(NamedData("pbc", size=model.image_size[0]))
        both = join([single_images(images, "probes") for images in (splits.validation, splits.test)])
        rows = np.concatenate([np.flatnonzero(arrays["split"] == split) for split in (1, 2)])
        wanted = np.searchsorted(rows, np.flatnonzero(known), sorter=np.argsort(rows))
        descriptions = describe(model, both.subset(np.argsort(rows)[wanted].tolist()))
        described[name] = descriptions["poses" if name == "poses" else "statistics"]
    results: dict[str, Any] = {"images": int(known.sum()), "attributes": {}}
    for attribute, values in attributes.items():
        predicted = {
            name: probe(np.hstack([features, classes]), values, classes.shape[1])
            for name, features in described.items()
        }
        base = predicted["class alone"]
        results["attributes"][attribute] = row = {
            name: {
                "balanced_accuracy": round(100 * balanced_accuracy_score(values, answer), 1),
                **({} if name == "class alone" else {"gain": gain_interval(values, answer, base)}),
            }
            for name, answer in predicted.items()
        }
        print(attribute, row, flush=True)
    poses = described["poses"].reshape(len(labels), 8, -1)
    results["single_numbers"] = single_numbers(poses, arrays["label"][known], attributes)
    for row in results["single_numbers"]:
        print(row)
    if arguments.out:
        write_json(arguments.out, results)


if __name__ == "__main__":
    main()
