"""Uncertainty of predictions: calibrated probabilities, prediction sets, and detection of out-of-distribution images.

`calibrate_model` and `fit_ood_detector` fit both to a trained network, and its weights are saved with them.
`evaluate_selective` and `evaluate_ood` measure them on test images. `capsella.models.inference` runs a network for its
output and its OOD scores.
"""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.uncertainty.calibration import (
        Calibration,
        CalibrationCurve,
        calibration_curve,
        check_coverage,
        fit_calibration,
        images_for_coverage,
        logits_of,
    )
    from capsella.uncertainty.fit import calibrate_model, fit_ood_detector
    from capsella.uncertainty.ood import (
        FALSE_POSITIVE_RATE,
        OODDetector,
        check_false_positive_rate,
        class_logits,
        energy_score,
        images_for_rate,
        msp_score,
    )
    from capsella.uncertainty.ood_evaluation import (
        DetectionScore,
        OODReport,
        OODResult,
        evaluate_ood,
        load_ood_set,
    )
    from capsella.uncertainty.saving import (
        is_fitted_to,
        load_fitted,
        save_fitted,
        weights_digest,
    )
    from capsella.uncertainty.selective import (
        CoveragePoint,
        SelectiveClassification,
        evaluate_selective,
        threshold_at_coverage,
    )
else:
    __getattr__ = lazy_imports(__name__, __file__)
