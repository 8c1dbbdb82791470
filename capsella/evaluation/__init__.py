"""What a trained model is worth: errors on a labelled set, robustness, predictions for files, and execution times."""

from capsella.evaluation.accuracy import ClassScore, Evaluation, evaluate
from capsella.evaluation.calibration import Calibration, calibration
from capsella.evaluation.perturbations import PERTURBATIONS, Perturbation
from capsella.evaluation.prediction import Prediction, find_images, predict_files, write_csv
from capsella.evaluation.robustness import Robustness, RobustnessPoint, perturbed, robustness
from capsella.evaluation.tables import evaluation_table
from capsella.evaluation.timing import ExecutionTime, ExecutionTimes, Timing, execution_times, interleaved

__all__ = [
    "PERTURBATIONS",
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
    "calibration",
    "evaluate",
    "evaluation_table",
    "execution_times",
    "find_images",
    "interleaved",
    "perturbed",
    "predict_files",
    "robustness",
    "write_csv",
]
