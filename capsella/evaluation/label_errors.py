"""Rank labels by how probably they are wrong: confident learning (Northcutt, Jiang and Chuang 2021).

It needs probabilities from networks that were not trained on the image, e.g. those of a cross-validation.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from capsella.errors import check_argument
from capsella.files import write_csv


class LabelRanking(NamedTuple):
    """Images in the order of how probably their label is wrong, the most probable first.

    order: indices of the images in this order. The other fields are in the order of the images. proposed: the most
    probable class other than the label. margin: the probability of the label minus that of the proposed class.
    is_suspect: True if confident learning considers the label wrong.
    """

    order: Int[np.ndarray, " n"]
    proposed: Int[np.ndarray, " n"]
    margin: Float[np.ndarray, " n"]
    is_suspect: Bool[np.ndarray, " n"]

    @property
    def suspects(self) -> Int[np.ndarray, " suspects"]:
        """The indices of the suspect images, the most probably wrong label first."""
        return self.order[self.is_suspect[self.order]]


def rank_labels(labels: Int[np.ndarray, " n"], probabilities: Float[np.ndarray, "n classes"]) -> LabelRanking:
    """Rank images by the margin of their label, and mark labels that are probably wrong.

    A class is confident for an image if its probability is at least the mean that images labelled so have. An image is
    suspect if neither its most probable class nor its most probable confident class is its label.

    >>> probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.95, 0.05]])
    >>> rank_labels(np.array([0, 0, 1, 1]), probabilities).suspects
    array([3])
    """
    shape = probabilities.shape
    check_argument(len(shape) == 2 and shape[0] == len(labels), f"be [{len(labels)} classes]", probabilities=shape)
    rows = np.arange(len(labels))
    present = np.bincount(labels, minlength=shape[1]) > 0
    thresholds = np.array([probabilities[labels == k, k].mean() if present[k] else np.inf for k in range(shape[1])])
    confident = np.where(probabilities >= thresholds, probabilities, -1.0)
    others = probabilities.copy()
    others[rows, labels] = -1.0
    margin = probabilities[rows, labels] - others.max(1)
    is_suspect = (confident.max(1) >= 0) & (confident.argmax(1) != labels)
    is_suspect &= probabilities.argmax(1) != labels
    return LabelRanking(np.argsort(margin, kind="stable"), others.argmax(1), margin, is_suspect)


def write_label_ranking(
    path: Path, ranking: LabelRanking, labels: Int[np.ndarray, " n"], classes: tuple[str, ...], files: tuple[str, ...]
) -> None:
    """Write a CSV row per image, the most probably wrong label first: file, class, proposed class, margin, suspect."""
    rows = (
        (
            files[k],
            classes[labels[k]],
            classes[ranking.proposed[k]],
            f"{ranking.margin[k]:.4f}",
            "yes" if ranking.is_suspect[k] else "no",
        )
        for k in ranking.order.tolist()
    )
    write_csv(path, ("file", "class", "proposed", "margin", "suspect"), rows)
