"""What a trained model is worth: errors on a labelled set, and predictions for files without labels."""

from capsella.evaluation.accuracy import ClassScore, Evaluation, evaluate
from capsella.evaluation.calibration import Calibration, calibration
from capsella.evaluation.prediction import Prediction, find_images, predict_files, write_csv
from capsella.evaluation.tables import evaluation_table

__all__ = [
    "Calibration",
    "ClassScore",
    "Evaluation",
    "Prediction",
    "calibration",
    "evaluate",
    "evaluation_table",
    "find_images",
    "predict_files",
    "write_csv",
]
