"""Choose which images of another laboratory to label first, for `capsella adapt`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from capsella.data.decoding import decode_files
from capsella.errors import check_argument, check_minimum
from capsella.evaluation.predict import find_images, outcomes_of
from capsella.evaluation.tables import PredictOptions, UnreadableFile
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
    model: ImageClassifier,
    paths: Iterable[Path],
    number: int,
    options: PredictOptions = PredictOptions(workers=0),
    *,
    progress: bool = False,
) -> tuple[list[LabelCandidate], list[UnreadableFile]]:
    """Return the images whose labels would help a network most, in the order of choice, and the unreadable files.

    They are uncertain, and differ from each other: centres of k-means++ on the network's features, each image weighted
    by 1 − the calibrated probability of its class (Zhdanov 2019, arXiv:1901.05954). So many images that confuse the
    network in the same way are represented by a few.

    Args:
        model: a network that predicts one class per image. Without a calibration, activations divided by their sum are
            the probabilities.
        paths: files and folders, as for `find_images`.
        number: how many images to choose.
        options: options of the predictions; coverage, unsure_below and false_positive_rate are not used.
        progress: show a progress bar on standard error.

    Raises:
        ArgumentError: fewer images than `number` can be read. CapsellaError: the weights are broken.
    """
    check_minimum(1, number=number)
    files, quick = list(map(str, find_images(paths))), without_unused_decoder(model, None)
    candidates, unreadable, rows = list[LabelCandidate](), list[UnreadableFile](), list[Tensor]()
    chunks = decode_files(files, model.preprocessing, chunk=options.batch_size, workers=options.threads)
    for chunk in tracked(chunks, "predicting", -(-len(files) // options.batch_size), is_shown=progress):
        for outcome in outcomes_of(quick, chunk, options, _with_features(quick, chunk.pixels)):
            if isinstance(outcome, UnreadableFile):
                unreadable.append(outcome)
                continue
            activations = outcome.activations
            assert outcome.scores is not None
            shares = activations / activations.sum().clamp(min=1e-9)
            probabilities = shares if model.calibration is None else model.calibration.probabilities(activations)
            candidates.append(
                LabelCandidate(outcome.file, outcome.class_name, float(probabilities[activations.argmax()]))
            )
            rows.append(outcome.scores)
    check_argument(
        number <= len(candidates), f"be at most the {len(candidates)} images that can be read", number=number
    )
    features = torch.stack(rows).numpy()
    features = (features - features.mean(0)) / (features.std(0) + 1e-6)
    chosen = _spread_out(features, 1 - np.array([candidate.probability for candidate in candidates]), number)
    return [candidates[k] for k in chosen], unreadable


def _with_features(model: ImageClassifier, pixels: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the activations and features of each image; the activations stand for features if there are none."""
    if not len(pixels):
        return iter(())
    with inference(model) as device:
        output, extracted = extract(model, torch.from_numpy(pixels).to(device).float() / 255)
    activations = output.activations.float().cpu().clone()
    return zip(activations, extracted.get("features", activations).float().cpu().clone(), strict=True)


def _spread_out(features: np.ndarray, uncertainty: np.ndarray, number: int) -> list[int]:
    """Return different indices: the centres of weighted k-means++, then the most uncertain images if there are few."""
    from sklearn.cluster import kmeans_plusplus  # a second to import

    weights = np.maximum(uncertainty, _LEAST_UNCERTAINTY)
    _, centres = kmeans_plusplus(features, number, sample_weight=weights, random_state=0)
    return list(dict.fromkeys([*centres.tolist(), *np.argsort(-uncertainty, kind="stable").tolist()]))[:number]


def write_candidates(path: Path, candidates: Iterable[LabelCandidate]) -> None:
    """Write a CSV row for each image to label: file, class, probability."""
    write_csv(path, ("file", "class", "probability"), ((file, name, f"{p:.4f}") for file, name, p in candidates))
