"""Labels that are probably wrong come first."""

import csv

import numpy as np

from capsella.evaluation.label_errors import rank_labels, write_label_ranking

CLASSES = 5


def noisy(seed, images=800, wrong=40, sharpness=3.0):
    """Planted errors, and probabilities of a network that is right for most images."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, CLASSES, images)
    labels, planted = truth.copy(), random.choice(images, wrong, replace=False)
    labels[planted] = (truth[planted] + random.integers(1, CLASSES, wrong)) % CLASSES
    scores = random.normal(0, 1, (images, CLASSES))
    scores[np.arange(images), truth] += sharpness
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return labels, probabilities, planted


def test_planted_errors_are_in_the_first_tenth():
    labels, probabilities, planted = noisy(0)
    ranking = rank_labels(labels, probabilities)
    assert len(set(planted) & set(ranking.order[:80])) >= 0.8 * len(planted)
    assert np.isin(planted, ranking.suspects).mean() > 0.8
    assert len(ranking.suspects) < 160
    assert (ranking.proposed != labels).all()


def test_without_errors_few_labels_are_suspect():
    labels, probabilities, _ = noisy(0, wrong=0, sharpness=6.0)
    assert rank_labels(labels, probabilities).is_suspect.mean() < 0.01


def test_the_most_probable_class_is_not_suspect():
    first = np.array([0.95, 0.95, 0.55, 0.6, 0.6])  # 0.45 is much for the second class, whose images have 0.4
    assert not rank_labels(np.array([0, 0, 0, 1, 1]), np.stack([first, 1 - first], 1)).is_suspect.any()


def test_the_file(tmp_path):
    labels, probabilities, _ = noisy(1, images=30, wrong=3)
    ranking, names = rank_labels(labels, probabilities), tuple("abcde")
    write_label_ranking(tmp_path / "l.csv", ranking, labels, names, tuple(f"{k}.png" for k in range(30)))
    with (tmp_path / "l.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["file"].removesuffix(".png")) for row in rows] == ranking.order.tolist()
    assert [row["suspect"] for row in rows].count("yes") == ranking.is_suspect.sum()
