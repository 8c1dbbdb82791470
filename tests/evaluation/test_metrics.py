"""Scores of an evaluation, against scikit-learn; pairs, groups and folds; how they are printed."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import (
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    precision_recall_fscore_support,
    recall_score,
    roc_auc_score,
)
from torch import nn

from capsella.data import ImageSet
from capsella.errors import ArgumentError
from capsella.evaluation import Evaluation, Folds, evaluate, wilson_interval
from capsella.models import ImageClassifier
from capsella.report.prose import evaluation_notes, evaluation_warnings
from capsella.report.terminal import evaluation_table
from capsella.types import Output

NAMES = ("a", "b", "c")


class Brightness(ImageClassifier):
    """Activation k is high where the image's mean is near k/2: predictable without training."""

    def __init__(self):
        super().__init__((4, 4), 1, NAMES)
        self.scale = nn.Parameter(torch.ones(1))
        self.dropout = nn.Dropout(0.5)

    def forward(self, images, labels=None):
        centres = torch.tensor([0.0, 0.5, 1.0])
        mean = self.dropout(images).mean((1, 2, 3)).unsqueeze(1)
        return Output(self.scale * (1 - (mean - centres).abs()))


def grey_images(values, labels, classes=NAMES):
    images = torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).clone()
    return ImageSet(images, torch.tensor(labels, dtype=torch.int64), classes)


def predicted(predictions, labels, classes=NAMES, confidence=0.8, **more):
    activations = torch.full((len(labels), len(classes)), 0.1)
    activations[torch.arange(len(labels)), torch.tensor(predictions)] = torch.as_tensor(confidence)
    return Evaluation(activations, torch.tensor(labels), classes, **more)


def printed(evaluation, width=120):
    console = Console(file=io.StringIO(), width=width)
    console.print(evaluation_table(evaluation))
    return console.file.getvalue()


def test_evaluate_classifies_every_image_in_order_whatever_the_batch_size():
    model = Brightness().train()
    model.dropout.eval()
    images = grey_images([0, 128, 255, 250, 10], [0, 1, 2, 0, 0])
    evaluations = [evaluate(model, images, batch_size=size) for size in (2, 100)]
    torch.testing.assert_close(evaluations[0].activations, evaluations[1].activations)
    assert evaluations[0].predictions.tolist() == [0, 1, 2, 2, 0]
    assert (evaluations[0].errors, evaluations[0].error) == (1, 20)
    assert evaluations[0].mistakes().tolist() == [3]
    assert not evaluations[0].activations.requires_grad
    assert (model.training, model.dropout.training) == (True, False)


def test_scores_agree_with_scikit_learn():
    generator = np.random.default_rng(1)
    labels = generator.choice(3, 300, p=[0.8, 0.15, 0.05])
    activations = generator.random((300, 3)) + 0.5 * np.eye(3)[labels]
    evaluation = Evaluation(torch.from_numpy(activations), torch.from_numpy(labels), NAMES)
    predictions = activations.argmax(1)
    ours = [(s.precision, s.recall, s.f1, s.support) for s in evaluation.per_class]
    np.testing.assert_allclose(np.array(ours), np.stack(precision_recall_fscore_support(labels, predictions), 1))
    assert evaluation.balanced_accuracy == pytest.approx(100 * balanced_accuracy_score(labels, predictions))
    assert evaluation.macro_f1 == pytest.approx(f1_score(labels, predictions, average="macro"))
    areas = [roc_auc_score(labels == k, activations[:, k]) for k in range(3)]
    assert [score.auc for score in evaluation.per_class] == pytest.approx(areas)
    assert evaluation.macro_auc == pytest.approx(np.mean(areas))
    specificities = [recall_score(labels != k, predictions != k) for k in range(3)]
    assert [score.specificity for score in evaluation.per_class] == pytest.approx(specificities)
    assert (evaluation.confusion == confusion_matrix(labels, predictions)).all()
    json.dumps(evaluation.to_dict(), allow_nan=False)


def test_the_dictionary_holds_the_numbers_and_null_for_what_is_missing():
    result = predicted([0, 1, 1, 2], [0, 1, 2, 2]).to_dict()
    assert (result["images"], result["errors"], result["error_percent"]) == (4, 1, 25)
    assert result["error_interval_95_percent"] == pytest.approx([100 * end for end in wilson_interval(1, 4)])
    assert result["confusion"]["counts"] == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert result["calibration"]["expected_calibration_error"] == pytest.approx(0.05)
    sparse = predicted([0, 0, 1], [0, 0, 0])
    a, b, c = json.loads(json.dumps(sparse.to_dict(), allow_nan=False))["classes"]
    assert (a["precision"], a["recall"], a["f1"]) == (1, pytest.approx(2 / 3), pytest.approx(0.8))
    assert (b["precision"], b["recall"], b["f1"]) == (0, None, None)
    assert (c["precision"], c["recall"], c["f1"]) == (None, None, None)
    assert (a["specificity"], a["specificity_interval"], a["auc"]) == (None, None, None)


def test_a_constant_prediction_is_warned_of():
    labels = [0] * 60 + [1] * 38 + [2] * 2
    constant, good = (predicted(of, labels) for of in ([0] * 100, labels))
    never, baseline = evaluation_warnings(constant)
    assert never.endswith(": b (0 of 38), c (0 of 2)")
    assert "60.0 %: +0.0 points (95 % interval −1.9 to +1.9)" in baseline
    assert printed(constant).startswith(f"WARNING: {never}")
    assert constant.balanced_accuracy == pytest.approx(100 / 3)
    assert (good.majority.is_beaten, evaluation_warnings(good)) == (True, [])
    assert predicted([0], [0]).majority is None


def test_the_most_confident_mistake_comes_first():
    evaluation = predicted([1, 0, 1, 2], [0, 0, 0, 0], confidence=[0.3, 0.99, 0.9, 0.5])
    assert evaluation.mistakes().tolist() == [2, 3, 0]
    assert predicted([0], [0], confidence=1.0000001).calibration.counts[-1] == 1  # rounded above 1


def test_what_cannot_be_evaluated():
    broken = Brightness()
    broken.scale.data.fill_(float("nan"))
    for model, images, argument in (
        (Brightness(), grey_images([], []), "images"),
        (Brightness(), grey_images([0], [0], classes=("b", "a", "c")), "images.classes"),
        (broken, grey_images([0, 1], [0, 0]), "activations"),
    ):
        with pytest.raises(ValueError, match=f"^{argument}: "):
            evaluate(model, images)


def test_of_a_pair_both_classes_must_be_found():
    activations = torch.tensor([[0.9, 0.3, 0.7, 0.1], [0.2, 0.9, 0.1, 0.95], [0.5, 0.1, 0.9, 0.2]])
    labels = torch.tensor([[2, 0], [3, 0], [1, 3]])  # both found, one found, none found
    evaluation = Evaluation(activations, labels, ("a", "b", "c", "d"))
    assert evaluation.correct.tolist() == [True, False, False]
    assert evaluation.predictions.tolist() == [[2, 0], [3, 1], [2, 0]]
    assert evaluation.confidence.tolist() == pytest.approx([0.7, 0.9, 0.5])
    assert evaluation.mistakes().tolist() == [1, 2]
    assert evaluation.confusion.tolist() == [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [1, 0, 0, 1]]
    scores = {score.name: (score.support, score.predicted, score.recall) for score in evaluation.per_class}
    assert scores == {"a": (2, 2, 0.5), "b": (1, 1, 0.0), "c": (1, 2, 1.0), "d": (2, 1, 0.5)}
    assert [score.specificity for score in evaluation.per_class] == [0.0, 0.5, 0.5, 1.0]
    assert (evaluation.to_dict()["errors"], evaluation.majority) == (2, None)
    printed(evaluation)


def test_groups_widen_every_interval():
    generator = np.random.default_rng(7)
    groups, easy = np.arange(30).repeat(20), np.clip(generator.normal(0.8, 0.25, 30), 0, 1).repeat(20)
    labels, right = groups % 3, generator.random(600) < easy
    predictions = np.where(right, labels, (labels + 1) % 3).tolist()
    plain = predicted(predictions, labels.tolist())
    grouped = replace(plain, group=torch.from_numpy(groups))
    for name in ("error_interval", "balanced_accuracy_interval"):
        (low, high), (least, most) = getattr(plain, name), getattr(grouped, name)
        assert most - least > 1.5 * (high - low)
    for score, wide in zip(plain.per_class, grouped.per_class, strict=True):
        assert (wide.recall, wide.specificity, wide.support) == (score.recall, score.specificity, score.support)
        assert np.ptp(wide.recall_interval) > 1.5 * np.ptp(score.recall_interval)
        assert np.ptp(wide.specificity_interval) > 1.2 * np.ptp(score.specificity_interval)
    assert "30 groups" in evaluation_notes(grouped)[0]
    single = replace(plain, group=torch.zeros(600).long())
    assert single.groups is None
    assert single.error_interval == plain.error_interval
    assert any("1 group" in warning for warning in evaluation_warnings(single))


class TestFolds:
    def of(self, labels, predictions):
        return Evaluation(torch.eye(3)[predictions], torch.tensor(labels), NAMES)

    def test_all_images_count_once(self):
        values = Folds([self.of([0, 0, 1, 2], [0, 1, 1, 2]), self.of([0, 1], [1, 0])]).to_dict()
        assert (values["pooled"]["errors"], values["pooled"]["images"]) == (3, 6)
        assert [fold["error_percent"] for fold in values["folds"]] == [25.0, 100.0]
        assert values["pooled"]["balanced_accuracy_percent"] == pytest.approx(100 * (1 / 3 + 1 / 2 + 1) / 3)

    def test_the_interval_is_that_of_few_images_and_of_trainings_that_differ(self):
        assert Folds([self.of([0, 1, 2], [0, 1, 2])] * 3).error_interval[1] > 20  # 9 images without a mistake
        wrong = [(2, 2, 2), (0, 0, 6)]  # of 20 images in each fold
        folds = [Folds([self.of([0, 1] * 10, [0, 1] * (10 - n) + [1, 0] * n) for n in each]) for each in wrong]
        for name in ("error_interval", "balanced_accuracy_interval"):
            alike, apart = (np.ptp(getattr(each, name)) for each in folds)
            assert apart > 1.5 * alike

    def test_one_fold_is_no_cross_validation(self):
        with pytest.raises(ArgumentError):
            Folds([self.of([0], [0])])
