"""Choose which images of another laboratory to label first, for `capsella adapt`."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from capsella.data.decoding import decode_files
from capsella.errors import check_argument, check_minimum
from capsella.evaluation.predict import find_images
from capsella.files import write_csv
from capsella.models import ImageClassifier
from capsella.models.inference import extract, inference, without_unused_decoder
from capsella.progress import tracked

_LEAST_UNCERTAINTY = 1e-6  # images of which the network is certain may still be chosen to fill the list


class LabelCandidate(NamedTuple):
    """An image to label, the class that the network predicts, and the probability of this class."""

    file: Path
    class_name: str
    probability: float


def choose_to_label(
    model: ImageClassifier, paths: Iterable[Path], number: int, *, batch_size: int = 64, progress: bool = False
) -> list[LabelCandidate]:
    """Return the images whose labels would help a network most, in the order of choice.

    They are uncertain, and differ from each other: centres of k-means++ on the network's features, each image weighted
    by 1 − the calibrated probability of its class (Zhdanov 2019, arXiv:1901.05954). So many images that confuse the
    network in the same way are represented by a few. Files that cannot be read are passed over.

    Args:
        model: a network that predicts one class per image. Without a calibration, activations divided by their sum are
            the probabilities.
        paths: files and folders, as for `find_images`.
        number: how many images to choose.
        batch_size: affects speed and memory only.
        progress: show a progress bar on standard error.

    Raises:
        ArgumentError: fewer images than `number` can be read.
    """
    check_minimum(1, number=number)
    files, quick = list(map(str, find_images(paths))), without_unused_decoder(model, None)
    steps, candidates, columns = -(-len(files) // batch_size), list[LabelCandidate](), list[np.ndarray]()
    chunks = decode_files(files, model.preprocessing, chunk=batch_size, workers=0)
    for chunk in tracked(chunks, "predicting", steps, is_shown=progress):
        if not len(chunk.pixels):
            continue
        with inference(quick) as device:
            output, extracted = extract(quick, torch.from_numpy(chunk.pixels).to(device).float() / 255)
        activations = output.activations.float().cpu().clone()
        shares = activations / activations.sum(1, keepdim=True).clamp(min=1e-9)
        probabilities = shares if model.calibration is None else model.calibration.probabilities(activations)
        columns.append(extracted.get("features", output.activations).float().cpu().numpy())
        readable = [file for file, reason in zip(chunk.files, chunk.reasons, strict=True) if reason is None]
        for file, predicted, row in zip(readable, activations.argmax(1).tolist(), probabilities, strict=True):
            candidates.append(LabelCandidate(Path(file), model.classes[predicted], float(row[predicted])))
    check_argument(
        number <= len(candidates), f"be at most the {len(candidates)} images that can be read", number=number
    )
    features = np.concatenate(columns)
    features = (features - features.mean(0)) / (features.std(0) + 1e-6)
    return [candidates[k] for k in _spread_out(features, 1 - np.array([c.probability for c in candidates]), number)]


def _spread_out(features: np.ndarray, uncertainty: np.ndarray, number: int) -> list[int]:
    """Return different indices: the centres of weighted k-means++, then the most uncertain images if there are few."""
    from sklearn.cluster import kmeans_plusplus  # a second to import

    weights = np.maximum(uncertainty, _LEAST_UNCERTAINTY)
    _, centres = kmeans_plusplus(features, number, sample_weight=weights, random_state=0)
    return list(dict.fromkeys([*centres.tolist(), *np.argsort(-uncertainty, kind="stable").tolist()]))[:number]


def write_candidates(path: Path, candidates: Iterable[LabelCandidate]) -> None:
    """Write a CSV row for each image to label: file, class, probability."""
    write_csv(path, ("file", "class", "probability"), ((file, name, f"{p:.4f}") for file, name, p in candidates))
