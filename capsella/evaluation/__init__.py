"""What a trained model is worth: errors, robustness, what attacks leave of it, predictions for files, and times."""

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
from capsella.evaluation.perturbations import PERTURBATIONS, Perturbation
from capsella.evaluation.prediction import Broken, Prediction, predict_files
from capsella.evaluation.prediction_job import Written, predict_table
from capsella.evaluation.prediction_tables import print_table, write_broken, write_table
from capsella.evaluation.robustness import Robustness, RobustnessPoint, perturbed, robustness
from capsella.evaluation.tables import evaluation_table
from capsella.evaluation.timing import ExecutionTime, ExecutionTimes, Timing, execution_times, interleaved

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
    "perturbed",
    "predict_files",
    "predict_table",
    "print_table",
    "robustness",
    "write_broken",
    "write_table",
]
