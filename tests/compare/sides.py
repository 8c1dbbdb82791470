"""Sides of a comparison, made by hand."""

import numpy as np

from capsella.compare.sides import Side, Yardstick
from capsella.compare.verdict import judge as judge_by

IMAGES = 200

EVEN = np.arange(IMAGES) % 5

CLASSES = ("basophil", "eosinophil", "lymphocyte", "monocyte", "neutrophil")


def judge(capsules, cnn, limit, labels=EVEN, unfinished=()):
    return judge_by(capsules, cnn, Yardstick(labels, CLASSES, limit, 30, unfinished))


def right(*counts, first=0):
    """A row a seed: that many images right, from the image `first` on."""
    table = np.zeros((len(counts), IMAGES), bool)
    for row, count in zip(table, counts, strict=True):
        row[first : first + count] = True
    return table


def side(network, hits, **changes):
    given = {"shipped": 0, "latency": (5.0, 6.0), "parameters": 1000}
    return Side(network, hits, **{**given, **changes})
