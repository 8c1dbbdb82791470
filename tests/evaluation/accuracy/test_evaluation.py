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
from capsella.evaluation import Evaluation, evaluate, evaluation_table, shares, wilson_interval
from capsella.models import ImageClassifier
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


def of_predictions(predictions, labels, classes=NAMES, confidence=0.8):
    activations = torch.full((len(labels), len(classes)), 0.1)
    activations[torch.arange(len(labels)), torch.tensor(predictions)] = torch.as_tensor(confidence)
    return Evaluation(activations, torch.tensor(labels), classes)


def printed(evaluation):
    console = Console(file=io.StringIO(), width=120)
    console.print(evaluation_table(evaluation))
    return console.file.getvalue()


def test_evaluate_classifies_every_image_in_order():
    images = grey_images([0, 128, 255, 250, 10], [0, 1, 2, 0, 0])
    evaluation = evaluate(Brightness(), images, batch_size=2)
    assert evaluation.predictions.tolist() == [0, 1, 2, 2, 0]
    assert evaluation.errors == 1
    assert evaluation.error == 20
    assert evaluation.mistakes().tolist() == [3]
    assert not evaluation.activations.requires_grad


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_batch_size_changes_nothing(batch_size):
    images = grey_images(list(range(0, 250, 25)), [0] * 10)
    whole = evaluate(Brightness(), images, batch_size=10).activations
    torch.testing.assert_close(evaluate(Brightness(), images, batch_size).activations, whole)


def test_modes_are_restored_module_by_module():
    model = Brightness().train()
    model.dropout.eval()
    evaluate(model, grey_images([0], [0]))
    assert model.training
    assert not model.dropout.training


def test_scores_agree_with_scikit_learn():
    generator = np.random.default_rng(0)
    labels, predictions = generator.integers(0, 3, 200), generator.integers(0, 3, 200)
    evaluation = of_predictions(predictions, labels)
    theirs = precision_recall_fscore_support(labels, predictions)
    ours = [(s.precision, s.recall, s.f1, s.support) for s in evaluation.per_class]
    np.testing.assert_allclose(np.array(ours), np.stack(theirs, 1))


def test_confusion_has_true_classes_in_rows():
    evaluation = of_predictions([1, 1, 2], [0, 1, 1])
    assert evaluation.confusion.tolist() == [[0, 1, 0], [0, 1, 1], [0, 0, 0]]


def test_interval_is_wilsons():
    low, high = of_predictions([0] * 8 + [1] * 2, [0] * 10).error_interval
    z, n, p = 1.959964, 10, 0.2
    centre, half = (p + z**2 / 2 / n), z * (p * (1 - p) / n + z**2 / 4 / n**2) ** 0.5
    assert low == pytest.approx(100 * (centre - half) / (1 + z**2 / n), abs=1e-3)
    assert high == pytest.approx(100 * (centre + half) / (1 + z**2 / n), abs=1e-3)


def test_missing_classes_give_null_and_say_so():
    result = of_predictions([0, 0, 1], [0, 0, 0]).to_dict()
    json.dumps(result, allow_nan=False)
    unpredicted = of_predictions([0, 0], [0, 1]).to_dict()
    a, b, c = result["classes"]
    assert (a["precision"], a["recall"], a["f1"]) == (1, pytest.approx(2 / 3), pytest.approx(0.8))
    assert (b["precision"], b["recall"], b["f1"]) == (0, None, None)
    assert (c["precision"], c["recall"], c["f1"]) == (None, None, None)
    assert result["notes"] == ["no test images, so no recall and no F1: b, c", "never predicted, so no precision: c"]
    low, high = wilson_interval(0, 1)
    assert unpredicted["classes"][1] == {
        "name": "b", "support": 1, "predicted": 0, "precision": None, "recall": 0, "f1": 0,
        "recall_interval": (low, high), "specificity": 1, "specificity_interval": wilson_interval(1, 1), "auc": 0.5,
    }  # fmt: skip
    assert (a["specificity"], a["specificity_interval"], a["auc"]) == (None, None, None)


def test_dict_holds_the_numbers():
    result = of_predictions([0, 1, 1, 2], [0, 1, 2, 2]).to_dict()
    assert (result["images"], result["errors"], result["error_percent"]) == (4, 1, 25)
    assert result["confusion"]["counts"] == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert sum(result["calibration"]["bin_counts"]) == 4
    assert result["calibration"]["expected_calibration_error"] == pytest.approx(0.05)
    assert result["calibration"]["bin_accuracy"].count(None) == 14


def test_means_over_classes_agree_with_scikit_learn():
    generator = np.random.default_rng(1)
    labels = generator.choice(3, 300, p=[0.8, 0.15, 0.05])
    activations = generator.random((300, 3)) + 0.5 * np.eye(3)[labels]
    evaluation = Evaluation(torch.from_numpy(activations), torch.from_numpy(labels), NAMES)
    predictions = activations.argmax(1)
    assert evaluation.balanced_accuracy == pytest.approx(100 * balanced_accuracy_score(labels, predictions))
    assert evaluation.macro_f1 == pytest.approx(f1_score(labels, predictions, average="macro"))
    areas = [roc_auc_score(labels == k, activations[:, k]) for k in range(3)]
    assert [score.auc for score in evaluation.per_class] == pytest.approx(areas)
    assert evaluation.macro_auc == pytest.approx(np.mean(areas))
    spared = [recall_score(labels != k, predictions != k) for k in range(3)]
    assert [score.specificity for score in evaluation.per_class] == pytest.approx(spared)
    assert np.array(shares(evaluation.confusion)) == pytest.approx(
        confusion_matrix(labels, predictions, normalize="true")
    )
    assert np.array(shares(evaluation.confusion, "predicted")) == pytest.approx(
        confusion_matrix(labels, predictions, normalize="pred")
    )
    json.dumps(evaluation.to_dict(), allow_nan=False)


def test_a_model_that_names_the_commonest_class_alone_is_warned_of():
    constant = of_predictions([0] * 100, [0] * 60 + [1] * 38 + [2] * 2)
    assert constant.warnings() == [
        "never found: b (0 of 38), c (0 of 2)",
        "not shown to be better than calling every image a, which is right for 60.0 %: +0.0 points "
        "(95 % interval −1.9 to +1.9)",
    ]
    assert constant.balanced_accuracy == pytest.approx(100 / 3)
    assert printed(constant).splitlines()[0] == "WARNING: never found: b (0 of 38), c (0 of 2)"
    worse = of_predictions([1] * 100, [0] * 60 + [1] * 38 + [2] * 2)
    assert str(worse.majority).startswith("worse than calling every image a, which is right for 60.0 %: −22.0 points")


def test_a_good_model_has_no_warning():
    good = of_predictions([0] * 60 + [1] * 38 + [2] * 2, [0] * 60 + [1] * 38 + [2] * 2)
    assert good.warnings() == good.to_dict()["warnings"] == []
    assert good.majority.is_beaten
    assert "WARNING" not in printed(good)
    assert "better than calling every image a, which is right for 60.0 %: +40.0 points" in printed(good)


def test_many_lost_classes_are_counted():
    names = tuple(f"class{k}" for k in range(20))
    (lost, _) = of_predictions([0] * 20, list(range(20)), classes=names).warnings()
    assert lost.endswith("class8 (0 of 1) and 11 more classes")


def test_a_single_image_has_no_baseline():
    assert of_predictions([0], [0]).majority is None


def test_most_confident_mistake_comes_first():
    evaluation = of_predictions([1, 0, 1, 2], [0, 0, 0, 0], confidence=[0.3, 0.99, 0.9, 0.5])
    assert evaluation.mistakes().tolist() == [2, 3, 0]


def test_a_length_rounded_above_one_still_calibrates():
    evaluation = of_predictions([0], [0], confidence=1.0000001)
    assert evaluation.calibration.counts[-1] == 1


def test_table_prints_error_scores_and_names_as_they_are():
    text = printed(of_predictions([0, 1, 1, 2], [0, 1, 2, 2], classes=("[red]", "b", "c")))
    assert "error 25.00 % (95 % interval 4.56 to 69.94): 1 of 4 images wrong" in text
    assert text.count("[red]") == 4  # in both tables of scores, and as row and column of the matrix
    assert "50.00" in text
    assert "expected calibration error 0.0500" in text


def test_a_matrix_of_long_names_fits_a_terminal():
    names = ("immature granulocyte", "erythroblast", "eosinophil", "basophil", "lymphocyte", "neutrophil", "platelet")
    labels = torch.arange(7).repeat(3)
    screen = Console(width=80, record=True, file=io.StringIO())
    screen.print(evaluation_table(Evaluation(torch.eye(7)[labels], labels, names)))
    text = screen.export_text()
    assert "1 immature granulocyte │ 3 │ · │ · │ · │ · │ · │ · │" in text
    assert max(map(len, text.splitlines())) <= 80


def test_table_lists_confusions_where_a_matrix_would_not_fit():
    names = tuple(f"class{k}" for k in range(40))
    text = printed(of_predictions([1, 1, 5], [0, 0, 4], classes=names))
    assert "commonest 2 of 2 kinds" in text
    first, second = (line for line in text.splitlines() if line.count("class") == 2 and "│" in line)
    assert ("class0" in first, "class1" in first, "2" in first) == (True, True, True)
    assert ("class4" in second, "class5" in second) == (True, True)


def test_empty_split_is_an_error():
    with pytest.raises(ValueError, match="at least one labelled image to evaluate, got none: the split is empty"):
        evaluate(Brightness(), grey_images([], []))


def test_other_classes_are_an_error():
    images = grey_images([0], [0], classes=("b", "a", "c"))
    with pytest.raises(ValueError, match=r"must be the model's classes \('a', 'b', 'c'\), got \('b', 'a', 'c'\)"):
        evaluate(Brightness(), images)


def test_other_size_is_an_error():
    images = replace(grey_images([0], [0]), images=torch.zeros(1, 3, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"images: must .*1, 4, 4.*got \(1, 3, 4, 4\)"):
        evaluate(Brightness(), images)


def test_broken_weights_are_an_error():
    model = Brightness()
    model.scale.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="must be finite, got NaN or infinity for 2 of 2 images"):
        evaluate(model, grey_images([0, 1], [0, 0]))


def test_batch_size_zero_is_an_error():
    with pytest.raises(ValueError, match="batch_size: must be at least 1, got 0"):
        evaluate(Brightness(), grey_images([0], [0]), batch_size=0)


@pytest.mark.parametrize(
    ("activations", "labels", "files", "message"),
    [
        (torch.zeros(0, 3), [], None, "split is empty"),
        (torch.zeros(2, 2), [0, 1], None, r"\[images classes\] = \(2, 3\), got \(2, 2\)"),
        (torch.zeros(1, 3), [3], None, "labels: must be in 0…2, got 3…3"),
        (torch.zeros(1, 3), [0], ("x", "y"), "files: must name each of the 1 images, got 2"),
    ],
)
def test_an_evaluation_checks_its_parts(activations, labels, files, message):
    with pytest.raises(ValueError, match=message):
        Evaluation(activations, torch.tensor(labels, dtype=torch.int64), NAMES, files)
