"""What a trained model is worth: errors on a labelled set, and predictions for files without labels."""

from capsella.evaluation.accuracy import ClassScore, Evaluation, evaluate
from capsella.evaluation.calibration import Calibration, calibration
from capsella.evaluation.listing import find_images, image_files
from capsella.evaluation.prediction import Broken, Prediction, predict_files
from capsella.evaluation.prediction_job import Written, predict_table
from capsella.evaluation.prediction_tables import print_table, write_broken, write_table
from capsella.evaluation.tables import evaluation_table

__all__ = [
    "Broken",
    "Calibration",
    "ClassScore",
    "Evaluation",
    "Prediction",
    "Written",
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
