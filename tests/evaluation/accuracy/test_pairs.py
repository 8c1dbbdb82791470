"""The evaluation of pairs: both labels must be right."""

import pytest
import torch

from capsella.evaluation import Evaluation, evaluation_table

CLASSES = ("a", "b", "c", "d")
ACTIVATIONS = torch.tensor([[0.9, 0.3, 0.7, 0.1], [0.2, 0.9, 0.1, 0.95], [0.5, 0.1, 0.9, 0.2]])
LABELS = torch.tensor([[2, 0], [3, 0], [1, 3]])  # both found, one found, none found


def test_an_image_is_right_only_if_both_classes_are_found() -> None:
    evaluation = Evaluation(ACTIVATIONS, LABELS, CLASSES)
    assert evaluation.correct.tolist() == [True, False, False]
    assert evaluation.error == pytest.approx(100 * 2 / 3)
    assert evaluation.predictions.tolist() == [[2, 0], [3, 1], [2, 0]]
    assert evaluation.confidence.tolist() == pytest.approx([0.7, 0.9, 0.5])
    assert evaluation.mistakes().tolist() == [1, 2]


def test_scores_count_each_class_of_each_pair() -> None:
    evaluation = Evaluation(ACTIVATIONS, LABELS, CLASSES)
    assert evaluation.confusion.sum() == 6
    assert evaluation.confusion.tolist() == [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [1, 0, 0, 1]]
    scores = {score.name: (score.support, score.predicted, score.recall) for score in evaluation.per_class}
    assert scores == {"a": (2, 2, 0.5), "b": (1, 1, 0.0), "c": (1, 2, 1.0), "d": (2, 1, 0.5)}
    assert [score.specificity for score in evaluation.per_class] == [0.0, 0.5, 0.5, 1.0]  # of images without the class
    report = evaluation.to_dict()
    assert report["images"] == 3
    assert report["errors"] == 2
    assert "second largest" in report["calibration"]["confidence"]
    assert evaluation_table(evaluation) is not None


def test_other_numbers_of_labels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"labels: must be \[n\] or, for pairs, \[n 2\], got \(3, 3\)"):
        Evaluation(ACTIVATIONS, torch.zeros(3, 3, dtype=torch.int64), CLASSES)
