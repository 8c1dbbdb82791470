"""Evaluate out-of-distribution detection: OOD images from other sources, and the AUROC of each score."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from capsella.data import DataOptions, ImageSet, NamedData, batches, load_data, source_names
from capsella.data.decoding import decode_files, resize_array
from capsella.data.images import join
from capsella.data.options import STAINED, NpzData
from capsella.errors import ArgumentError, CapsellaError, check_argument
from capsella.evaluation.predict import find_images, scaled
from capsella.evaluation.statistics import Groups, auc_interval, effective_sample_fraction, proportion_interval
from capsella.image_options import Preprocessing
from capsella.models import ImageClassifier
from capsella.models.inference import inference, predict_with_scores, without_unused_decoder
from capsella.types import check_finite
from capsella.uncertainty.ood import (
    FALSE_POSITIVE_RATE,
    check_false_positive_rate,
    class_logits,
    energy_score,
    images_for_rate,
    msp_score,
)

MOST = 1000  # images of each set, enough for an interval of ± 0.01
SEVERAL_SIZES = ("segmentation-wbc", "bloodmnist", "pneumoniamnist")  # sources that are stored at several sizes
NOISE, HALF = "noise", "half"
COMBINED = "combined"  # the largest normalised score, which the detector uses
BASELINES = ("msp", "energy")  # scores of the output alone, for comparison


@dataclass(frozen=True)
class DetectionScore:
    """The area under the ROC curve of one score, test images against an OOD set, with its 95 % interval."""

    score: str
    auc: float
    interval_95: tuple[float, float]


@dataclass(frozen=True, eq=False)
class OODResult:
    """The detection of one set of images.

    Attributes:
        flagged: number of images flagged as OOD.
        flagged_interval_95: 95 % interval of their proportion.
        other_kind: number of these that are of another kind, not of another laboratory; None if the model cannot tell.
        scores: for an OOD set, the AUROC of each score, the combined one first.
    """

    name: str
    images: int
    flagged: int
    flagged_interval_95: tuple[float, float]
    other_kind: int | None = None
    scores: tuple[DetectionScore, ...] = ()


@dataclass(frozen=True, eq=False)
class OODReport:
    """The result of `evaluate_ood`.

    Attributes:
        false_positive_rate: the requested rate.
        validation_images: number of validation images, which set the threshold.
        test: the in-distribution test images.
        sets: the OOD sets.
    """

    false_positive_rate: float
    validation_images: int
    test: OODResult
    sets: tuple[OODResult, ...]

    @property
    def has_threshold(self) -> bool:
        """True if there are enough validation images for a threshold; otherwise nothing is flagged."""
        return self.validation_images >= images_for_rate(self.false_positive_rate)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON."""
        return asdict(self)


def load_ood_set(name: str, model: ImageClassifier, test: ImageSet) -> UInt8[Tensor, "n c h w"]:
    """Load at most 1,000 out-of-distribution images at the size of a network, sampled with a fixed seed.

    Args:
        name: "noise": uniform pixels; "half": `test` with the right half painted in the colour of the border; the name
            of a source or an .npz file, of which all splits are used; or a folder of images.
        model: the model whose image size and channels are used.
        test: the in-distribution test images.
    """
    generator = torch.Generator().manual_seed(0)
    if name == NOISE:
        shape = (min(MOST, len(test)), model.channels, *model.image_size)
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    if name == HALF:
        few = test.subset(torch.randperm(len(test), generator=generator)[:MOST])
        return paint_right_half(few.images)
    if Path(name).is_dir():
        return _load_folder(name, model, generator)
    if name not in source_names() and Path(name).suffix != ".npz":
        raise CapsellaError(f"ood: must be {NOISE}, {HALF}, a source, an .npz file or a folder of images, got {name!r}")
    return _load_source(name, model, generator)


def paint_right_half(images: UInt8[Tensor, "n c h w"]) -> UInt8[Tensor, "n c h w"]:
    """Paint the right half of each image in the median colour of its border."""
    border = torch.cat([images[..., [0, -1], :].flatten(2), images[..., [0, -1]].flatten(2)], 2)
    images = images.clone()
    images[..., images.shape[3] // 2 :] = border.median(2).values[..., None, None]
    return images


def evaluate_ood(
    model: ImageClassifier,
    test: ImageSet,
    sets: Mapping[str, UInt8[Tensor, "n c h w"]],
    false_positive_rate: float = FALSE_POSITIVE_RATE,
    batch_size: int = 128,
) -> OODReport:
    """Measure how well the model's OOD detector tells `sets` from the test images.

    Args:
        model: a model with an `ood_detector`.
        test: in-distribution test images.
        sets: OOD images at the model's size, by the name of the set.
        false_positive_rate: the rate that sets the threshold, on the validation images.
        batch_size: affects speed and memory only.
    """
    check_false_positive_rate(false_positive_rate)
    if (detector := model.ood_detector) is None:
        raise ArgumentError("model", "have an OOD detector, as capsella.uncertainty.fit_ood_detector fits it", None)
    check_argument(len(test) > 0 and bool(sets), "be at least one", test_and_sets=(len(test), len(sets)))
    groups = None if test.group is None else test.group.numpy()
    limits = detector.threshold(false_positive_rate), detector.kind_threshold(false_positive_rate)
    inside = _score(model, test.images, batch_size)
    results = []
    for name, images in sets.items():
        scores = _score(model, images, batch_size)
        results.append(replace(_flag(name, scores, *limits), scores=_compare(inside, scores, groups)))
    result = _flag("test images", inside, *limits, groups)
    return OODReport(false_positive_rate, detector.images, result, tuple(results))


Scores = dict[str, Float[Tensor, " n"]]


def _score(model: ImageClassifier, images: Tensor, batch_size: int) -> Scores:
    """Return the scores of images by name."""
    detector = model.ood_detector
    assert detector is not None
    rows = []
    quick = without_unused_decoder(model, detector)
    unlabelled = ImageSet(images, torch.zeros(len(images), dtype=torch.int64), model.classes)
    with inference(quick) as device:
        for part, _, _ in batches(unlabelled, batch_size, device=device):
            output, normalized = predict_with_scores(quick, part, detector)
            check_finite(output.activations)
            logits = class_logits(output)
            baselines = torch.stack([msp_score(logits), energy_score(logits)], 1)
            columns = (normalized.amax(1, keepdim=True), normalized, baselines)
            rows.append(torch.cat([column.double().cpu() for column in columns], 1))
    names = (COMBINED, *detector.scores, *BASELINES)
    return dict(zip(names, torch.cat(rows).clone().unbind(1), strict=True))


def _flag(
    name: str, scores: Scores, threshold: float, kind_threshold: float | None, groups: Groups | None = None
) -> OODResult:
    flagged = scores[COMBINED] > threshold
    other = None if kind_threshold is None else int((flagged & (scores[COMBINED] > kind_threshold)).sum())
    return OODResult(name, len(flagged), int(flagged.sum()), proportion_interval(flagged.numpy(), groups), other)


def _compare(inside: Scores, outside: Scores, groups: Groups | None) -> tuple[DetectionScore, ...]:
    """Return the area under the ROC curve of each score."""
    from sklearn.metrics import roc_auc_score

    areas = []
    for name, scores in outside.items():
        is_ood = np.repeat([0, 1], (len(inside[name]), len(scores)))
        both = torch.cat([inside[name], scores]).numpy()
        auc = float(roc_auc_score(is_ood, both))
        areas.append(DetectionScore(name, auc, _auc_interval(auc, inside[name].numpy(), scores.numpy(), groups)))
    return tuple(areas)


def _auc_interval(
    auc: float, inside: Float[np.ndarray, " n"], outside: Float[np.ndarray, " m"], groups: Groups | None
) -> tuple[float, float]:
    """Return the 95 % interval of the area; grouped test images count as fewer.

    The area is a mean over the test images of the proportion of OOD images with a higher score (Obuchowski 1997,
    Biometrics 53), so its effective sample size is that of this mean.
    """
    ordered = np.sort(outside)
    at_most = np.searchsorted(ordered, inside, "left") + np.searchsorted(ordered, inside, "right")
    higher = 1 - at_most / (2 * len(outside))
    return auc_interval(auc, effective_sample_fraction(higher, groups) * len(inside), len(outside))


def _load_source(name: str, model: ImageClassifier, generator: torch.Generator) -> Tensor:
    splits = load_data(_source_options(name, model))
    every = join([images for images in splits.named().values() if isinstance(images, ImageSet)])
    few = every.subset(torch.randperm(len(every), generator=generator)[:MOST].sort().values)
    if model.channels == 2 and few.channels != 2:
        raise CapsellaError(f"ood: {name} has no stereo pairs, which {model.name} needs; use {NOISE} or {HALF}")
    preprocessing = Preprocessing(model.image_size, model.channels, fit=model.fit)
    return resize_array(few.images.permute(0, 2, 3, 1).numpy(), preprocessing)


def _source_options(name: str, model: ImageClassifier) -> DataOptions:
    """Return options that read a file, or a source that is stored at several sizes, at a size near the model's.

    Images of a file in which no cell is found are left out.
    """
    size, is_file = max(model.image_size), Path(name).suffix == ".npz"
    options: DataOptions = NamedData(name)
    if is_file:
        options = NpzData(Path(name), size=size, skip_broken=True, duplicates="ignore")
    if model.cut is not None and (is_file or name in STAINED):  # cells are cropped as the model's own
        return replace(options, size=size, cells="matched" if model.cut.matched else "cut")
    return replace(options, size=size) if name in SEVERAL_SIZES else options


def _load_folder(name: str, model: ImageClassifier, generator: torch.Generator) -> Tensor:
    files = list(map(str, find_images([Path(name)])))
    few = [files[k] for k in torch.randperm(len(files), generator=generator)[:MOST].sort().values.tolist()]
    cut = None if model.cut is None else scaled(model.cut, [Path(name)])[0]
    chunks = decode_files(few, replace(model.preprocessing, cut=cut))
    pixels = torch.cat([torch.from_numpy(chunk.pixels) for chunk in chunks])
    if not len(pixels):
        raise CapsellaError(f"ood: none of the {len(few)} images in {name} can be read")
    return pixels
