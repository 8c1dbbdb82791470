"""What a trained model is worth: errors, robustness, what attacks leave of it, predictions for files, and times."""

from capsella.evaluation.accuracy.calibration import Calibration, calibration
from capsella.evaluation.accuracy.evaluation import ClassScore, Evaluation, evaluate
from capsella.evaluation.accuracy.table import evaluation_table
from capsella.evaluation.attacks.networks import (
    AttackCurve,
    AttackOptions,
    UnderAttack,
    attack_networks,
    attack_notes,
    attack_table,
)
from capsella.evaluation.prediction.files import Broken, Prediction, predict_files
from capsella.evaluation.prediction.job import Written, predict_table
from capsella.evaluation.prediction.listing import find_images, image_files
from capsella.evaluation.prediction.tables import print_table, write_broken, write_table
from capsella.evaluation.robustness.changes import PERTURBATIONS, Perturbation
from capsella.evaluation.robustness.curves import Robustness, RobustnessPoint, measure_robustness, perturbed
from capsella.evaluation.times.steps import ExecutionTime, ExecutionTimes, Timing, execution_times, interleaved

__all__ = [
    "PERTURBATIONS",
    "AttackCurve",
    "AttackOptions",
    "Broken",
    "Calibration",
    "ClassScore",
    "Evaluation",
    "ExecutionTime",
    "ExecutionTimes",
    "Perturbation",
    "Prediction",
    "Robustness",
    "RobustnessPoint",
    "Timing",
    "UnderAttack",
    "Written",
    "attack_networks",
    "attack_notes",
    "attack_table",
    "calibration",
    "evaluate",
    "evaluation_table",
    "execution_times",
    "find_images",
    "image_files",
    "interleaved",
    "measure_robustness",
    "perturbed",
    "predict_files",
    "predict_table",
    "print_table",
    "write_broken",
    "write_table",
]
