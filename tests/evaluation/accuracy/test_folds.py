"""All folds together: pooled, with an interval over folds, and every image's answer in a file."""

import csv

import pytest
import torch

from capsella.evaluation import Evaluation, Folds


def evaluation(labels: list[int], said: list[int], files: tuple[str, ...] | None = None) -> Evaluation:
    return Evaluation(torch.eye(3)[said], torch.tensor(labels), ("a", "b", "c"), files)


def test_all_images_count_once_and_folds_alike():
    folds = Folds([evaluation([0, 0, 1, 2], [0, 1, 1, 2]), evaluation([0, 1], [1, 0])], others=6)
    values = folds.to_dict()
    assert (values["pooled"]["errors"], values["pooled"]["images"]) == (3, 6)
    assert [one["error_percent"] for one in values["folds"]] == [25.0, 100.0]
    assert values["error"]["mean_percent"] == 62.5
    low, high = values["error"]["interval_95_percent"]
    assert (low, high) == (0.0, 100.0)  # two folds: Student's quantile is 12.7
    assert [one["balanced_accuracy_percent"] for one in values["folds"]] == pytest.approx([250 / 3, 0.0])
    assert values["balanced_accuracy"]["mean_percent"] == pytest.approx(125 / 3)
    assert values["pooled"]["balanced_accuracy_percent"] == pytest.approx(100 * (1 / 3 + 1 / 2 + 1) / 3)


def test_the_interval_is_that_of_folds_and_of_few_images():
    right = [evaluation([0, 1, 2], [0, 1, 2]) for _ in range(3)]
    assert Folds(right, others=18).error.high > 0.2  # 9 images without a mistake
    mixed = [evaluation([0, 1] * 10, [0, 1] * (10 - wrong) + [1, 0] * wrong) for wrong in (1, 2, 3)]
    found = Folds(mixed, others=120).error
    assert found.estimate == pytest.approx(0.2)
    assert found.high - found.estimate == pytest.approx(4.302653 * 0.1 * (1 / 3 + 1 / 2) ** 0.5)


def test_predictions(tmp_path):
    files = (("a/0.png", "b/0.png"), ("c/0.png",))
    folds = Folds([evaluation([0, 1], [0, 2], files[0]), evaluation([2], [2], files[1])], others=3)
    folds.write_predictions(tmp_path / "p.csv")
    with open(tmp_path / "p.csv", newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    assert rows == [("a/0.png", "a", "0", "a"), ("b/0.png", "b", "0", "c"), ("c/0.png", "c", "1", "c")]
    assert folds.pooled.files == ("a/0.png", "b/0.png", "c/0.png")
    Folds([evaluation([0, 1], [0, 2]), evaluation([2], [2])], others=3).write_predictions(tmp_path / "n.csv")
    assert (tmp_path / "n.csv").read_text().splitlines()[1:] == ["0,a,0,a", "1,b,0,c", "0,c,1,c"]


def test_errors():
    with pytest.raises(ValueError, match="evaluations: must be of at least 2 folds, got 1"):
        Folds([evaluation([0], [0])], others=1)
    other = Evaluation(torch.eye(2), torch.tensor([0, 1]), ("a", "b"))
    named = evaluation([0], [0], ["a/0.png"])
    with pytest.raises(ValueError, match=r"must be of an image once in all folds, got a/0\.png twice"):
        Folds([named, named], others=1)
    with pytest.raises(ValueError, match="evaluations: must be of the same classes in every fold"):
        Folds([evaluation([0], [0]), other], others=1)
