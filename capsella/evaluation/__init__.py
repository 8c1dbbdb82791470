"""What a trained model is worth: errors on a labelled set, what attacks leave of it, and predictions for files."""

from capsella.evaluation.accuracy import ClassScore, Evaluation, evaluate
from capsella.evaluation.calibration import Calibration, calibration
from capsella.evaluation.prediction import Prediction, find_images, predict_files, write_csv
from capsella.evaluation.robustness import (
    AttackCurve,
    AttackOptions,
    Robustness,
    robustness,
    robustness_notes,
    robustness_table,
)
from capsella.evaluation.tables import evaluation_table

__all__ = [
    "AttackCurve",
    "AttackOptions",
    "Calibration",
    "ClassScore",
    "Evaluation",
    "Prediction",
    "Robustness",
    "calibration",
    "evaluate",
    "evaluation_table",
    "find_images",
    "predict_files",
    "robustness",
    "robustness_notes",
    "robustness_table",
    "write_csv",
]
