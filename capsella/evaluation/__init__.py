"""What a trained model is worth: errors on a labelled set, what attacks leave of it, and predictions for files."""

from capsella.evaluation.accuracy import ClassScore, Evaluation, evaluate
from capsella.evaluation.adversarial import (
    AttackCurve,
    AttackOptions,
    UnderAttack,
    attack_networks,
    attack_notes,
    attack_table,
)
from capsella.evaluation.calibration import Calibration, calibration
from capsella.evaluation.prediction import Prediction, find_images, predict_files, write_csv
from capsella.evaluation.tables import evaluation_table

__all__ = [
    "AttackCurve",
    "AttackOptions",
    "Calibration",
    "ClassScore",
    "Evaluation",
    "Prediction",
    "UnderAttack",
    "attack_networks",
    "attack_notes",
    "attack_table",
    "calibration",
    "evaluate",
    "evaluation_table",
    "find_images",
    "predict_files",
    "write_csv",
]
