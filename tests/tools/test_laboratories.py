"""Runs in other laboratories, as tables."""

import json

import pytest

from capsella.errors import CapsellaError
from tools.results import HEADER, markdown


def save(folder, name, values):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(values))


def a_test(errors, balanced=70.0):
    return {"images": 200, "errors": errors, "error_percent": errors / 2, "balanced_accuracy_percent": balanced}


@pytest.fixture
def results(tmp_path):
    for seed in (0, 1):
        folder = tmp_path / "laboratories" / f"images-resnet-seed{seed}"
        save(folder, "result", {"test": {"error_percent": 1.25 + seed}})
        save(folder, "hospital-all", a_test(50 + seed))
        pair = {"before": a_test(50 + seed), "after": a_test(20, 88.0)}
        options = {"how": "all", "replay": seed == 9, "per_class": 10}
        tests = {"hospital": pair, "own laboratory": {"before": a_test(1), "after": a_test(9)}}
        save(folder, "adapted-hospital", {"options": options, "tests": tests})
        auc = {"known": {"auc": 0.97 + seed / 100}, "confidence": {"auc": 0.5}}
        strange = {"name": "noise", "images": 40, "refused": 38, "auc": auc}
        save(folder, "test-elsewhere", {"elsewhere": {"home": {"images": 50, "refused": 2}, "elsewhere": [strange]}})
        attacks = [
            {"attack": "FGSM", "fooled": [10, 20], "fooled_and_not_known": [9, 20]},
            {"attack": "PGD", "fooled": [3, 3]},
        ]
        save(folder, "attacks", {"options": {"epsilons": [0.01, 0.1]}, "networks": {"run": {"attacks": attacks}}})
    return tmp_path


def test_each_table_has_a_row_a_recipe(results):
    text = markdown(results)
    assert "| `images-resnet` | hospital | 200 | 75.0, 74.5 | 70.0, 70.0 | 1.2, 2.2 |" in text
    assert "| `images-resnet` | hospital | all | 10 | 50 → 20, 51 → 20 | 88.0, 88.0 |" in text
    assert "| `images-resnet` | noise | 0.970, 0.980 | 95.0, 95.0 | 4.0, 4.0 |" in text
    for run in (0, 1):
        assert f"| `images-resnet` | {run} | FGSM | 9/10 | 20/20 |" in text
    assert "PGD" not in text  # nothing says which are known


def test_without_runs_there_is_no_section(tmp_path):
    assert markdown(tmp_path) == HEADER


def test_damaged_files_are_named(results):
    save(results / "laboratories" / "images-resnet-seed0", "hospital-all", {"images": 3})
    with pytest.raises(CapsellaError, match="laboratories is not what runs hold"):
        markdown(results)
