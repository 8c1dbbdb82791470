"""Fits beside a trained network's weights: its calibration, and a detector of out-of-distribution images.

Functions of tensors only. `capsella.models.scoring` runs a model for them, `capsella.training` fits them after a
training, `capsella.evaluation` measures them.
"""

from capsella.uncertainty.calibration import (
    Calibration,
    CalibrationCurve,
    calibration_curve,
    check_coverage,
    fit_calibration,
    images_for_coverage,
    log_loss,
    logits_of,
)
from capsella.uncertainty.ood import (
    FALSE_POSITIVE_RATE,
    OODDetector,
    check_false_positive_rate,
    class_logits,
    energy_score,
    images_for_rate,
    msp_score,
)
from capsella.uncertainty.saving import (
    is_fitted_to,
    read_calibration,
    read_detector,
    weights_digest,
    write_calibration,
    write_detector,
)
