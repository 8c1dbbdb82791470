"""What a model makes of a labelled set: error, scores of each class, calibration."""
