"""Check whether the class follows from something that is not the object: size, file type, camera, brightness, border.

A network that learns such a shortcut scores well on these images and fails on others.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from PIL import Image

from capsella.data import ImageSet
from capsella.evaluation.statistics import Groups, Interval, accuracy_interval, auc_interval

FOLDS = 5
EXIF_CAMERA = (271, 272, 305)  # make, model, software
WORTH_MENTIONING = 0.1  # balanced accuracy above guessing
MOST_NEIGHBOURS = 25
TIE_BREAK = 1e-3  # standard deviations
GIVEN_AWAY = 0.9  # area under the ROC curve, at least at the lower end of its 95 % interval


@dataclass(frozen=True)
class Shortcut:
    """The accuracy of a small model that sees one cue alone, on images that it was not fitted to.

    cue: e.g. "border colour". accuracy: balanced accuracy. guess: balanced accuracy of guessing. given_away: the area
    under the ROC curve of each class that the cue nearly identifies.
    """

    cue: str
    accuracy: Interval
    guess: float
    given_away: Mapping[str, float]

    @property
    def is_found(self) -> bool:
        """True if a class is given away, or the model is better than chance by at least 10 points."""
        beats = self.accuracy.low > self.guess and self.accuracy.estimate >= self.guess + WORTH_MENTIONING
        return beats or bool(self.given_away)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        shown = {"estimate": self.accuracy.estimate, "low": self.accuracy.low, "high": self.accuracy.high}
        given_away = dict(self.given_away)
        return {"cue": self.cue, "balanced_accuracy": shown, "guess": self.guess, "auc_of_classes": given_away}


def find_shortcuts(images: ImageSet, folder: Path | None = None) -> list[Shortcut]:
    """Test every cue that varies, and return the most predictive first.

    Args:
        images: all images, of one class each.
        folder: the folder of the image files; None: use only the pixels.
    """
    labels, groups = images.labels.numpy(), None if images.group is None else images.group.numpy()
    cues = {**_pixel_cues(images), **({} if folder is None or images.files is None else _file_cues(images, folder))}
    found = [
        _shortcut(cue, values, labels, images.classes, groups)
        for cue, values in cues.items()
        if (np.ptp(values, axis=0) > 0).any()
    ]
    return sorted(found, key=lambda shortcut: -max([shortcut.accuracy.estimate, *shortcut.given_away.values()]))


def _pixel_cues(images: ImageSet) -> dict[str, Float[np.ndarray, "n d"]]:
    """Return mean brightness, and the mean colour of the border, a sixteenth of the side wide."""
    brightness, border = [], []
    for start in range(0, len(images), 1000):
        pixels = images.images[start : start + 1000].numpy()
        height, width = pixels.shape[2:]
        edge = np.ones((height, width), bool)
        wide = max(1, min(height, width) // 16)
        edge[wide:-wide, wide:-wide] = False
        brightness.append(pixels.mean((1, 2, 3))[:, None])
        border.append(pixels[:, :, edge].mean(2))
    return {"brightness": np.concatenate(brightness), "border colour": np.concatenate(border)}


def _file_cues(images: ImageSet, folder: Path) -> dict[str, Float[np.ndarray, "n d"]]:
    """Return size, file type and camera, from names and headers."""
    sizes, kinds, cameras = [], [], []
    for name in images.files or ():
        size, camera = (0, 0), ""
        try:
            with Image.open(folder / name) as image:
                exif = image.getexif()
                size, camera = image.size, " ".join(str(exif[tag]) for tag in EXIF_CAMERA if tag in exif)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            pass  # files that Pillow cannot read have neither size nor camera
        sizes.append(size)
        kinds.append(Path(name).suffix.lower())
        cameras.append(camera)
    return {"image size": np.array(sizes, float), "file type": _codes(kinds), "camera": _codes(cameras)}


def _codes(words: list[str]) -> Float[np.ndarray, "n kinds"]:
    kinds = sorted(set(words))
    return np.array([[word == kind for kind in kinds] for word in words], float)


def _shortcut(
    cue: str,
    values: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    classes: tuple[str, ...],
    groups: Groups | None,
) -> Shortcut:
    """Cross-validate a nearest-neighbour classifier on the cue."""
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.preprocessing import StandardScaler

    present, counts = np.unique(labels, return_counts=True)
    folds = min(FOLDS, int(counts.max()), len(labels) if groups is None else len(np.unique(groups)))
    noise = TIE_BREAK * np.random.default_rng(0).standard_normal(values.shape)
    scaled = StandardScaler().fit_transform(values) + noise  # images of equal cues are drawn at random
    probabilities = np.zeros((len(labels), len(classes)))
    splitter = StratifiedKFold if groups is None else StratifiedGroupKFold
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about classes with fewer images than folds
        for train, held in splitter(max(2, folds), shuffle=True, random_state=0).split(scaled, labels, groups):
            nearest = KNeighborsClassifier(min(len(train), max(5, min(MOST_NEIGHBOURS, len(train) // 20))))
            nearest.fit(scaled[train], labels[train])
            probabilities[np.ix_(held, nearest.classes_)] = nearest.predict_proba(scaled[held])
    given_away = {}
    for label in present:
        is_class = labels == label
        area = float(roc_auc_score(is_class, probabilities[:, label]))
        if auc_interval(area, int((~is_class).sum()), int(is_class.sum()))[0] >= GIVEN_AWAY:
            given_away[classes[label]] = area
    balanced = probabilities[:, present] / counts  # as if all classes were equally frequent
    correct = (present[balanced.argmax(1)] == labels)[None]
    return Shortcut(cue, accuracy_interval(correct, groups, labels=labels), 1 / len(present), given_away)
