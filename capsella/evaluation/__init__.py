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
from capsella.evaluation.listing import find_images, image_files
from capsella.evaluation.prediction import Broken, Prediction, predict_files
from capsella.evaluation.prediction_job import Written, predict_table
from capsella.evaluation.prediction_tables import print_table, write_broken, write_table
from capsella.evaluation.tables import evaluation_table

__all__ = [
    "AttackCurve",
    "AttackOptions",
    "Broken",
    "Calibration",
    "ClassScore",
    "Evaluation",
    "Prediction",
    "UnderAttack",
    "Written",
    "attack_networks",
    "attack_notes",
    "attack_table",
    "calibration",
    "evaluate",
    "evaluation_table",
    "find_images",
    "image_files",
    "predict_files",
    "predict_table",
    "print_table",
    "write_broken",
    "write_table",
]
