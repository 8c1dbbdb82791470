"""Evaluate trained models: metrics with intervals, robustness, attacks, and predictions for files."""

from capsella.evaluation.attacks import AttackCurve, AttackOptions, AttackResult, attack_networks
from capsella.evaluation.metrics import (
    ClassScore,
    Evaluation,
    Folds,
    Majority,
    confusions,
    evaluate,
)
from capsella.evaluation.predict import (
    find_images,
    passed_over,
    predict_files,
    predict_on_cluster,
    predict_table,
    scaled,
    set_scale,
)
from capsella.evaluation.robustness import (
    PERTURBATIONS,
    Perturbation,
    Robustness,
    RobustnessPoint,
    measure_robustness,
    perturbed,
)
from capsella.evaluation.routing import LayerRouting, RoutingReport, measure_routing
from capsella.evaluation.statistics import (
    Groups,
    Interval,
    VarianceComponent,
    accuracy_interval,
    auc_interval,
    detectable_difference,
    difference_interval,
    holm_adjusted,
    over_seeds,
    points,
    pooled_seed_variance,
    proportion_interval,
    rank_test,
    slope_interval,
    wilson_interval,
)
from capsella.evaluation.tables import (
    Prediction,
    PredictionSummary,
    PredictOptions,
    UnreadableFile,
)
