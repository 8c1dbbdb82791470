"""What a trained model is worth: errors, robustness, what attacks leave of it, and predictions for files.

Other packages import from here; the folders inside are named after what is asked, and export nothing themselves.
"""

from capsella.evaluation.accuracy.evaluation import Evaluation, evaluate
from capsella.evaluation.accuracy.folds import Folds
from capsella.evaluation.accuracy.scores import ClassScore, Majority, Roc, confusions, shares
from capsella.evaluation.accuracy.table import evaluation_table, percent, with_interval
from capsella.evaluation.attacks.curves import (
    AttackCurve,
    AttackOptions,
    UnderAttack,
    attack_networks,
)
from capsella.evaluation.attacks.table import attack_notes, attack_table
from capsella.evaluation.groups import Groups
from capsella.evaluation.intervals import (
    FoldInterval,
    Interval,
    accuracy_interval,
    balanced_difference_interval,
    balanced_interval,
    difference_interval,
    fold_interval,
    points,
)
from capsella.evaluation.novelty.elsewhere import Elsewhere, elsewhere
from capsella.evaluation.novelty.measure import FromElsewhere, Knowledge, Told, measure_knowledge
from capsella.evaluation.novelty.table import knowledge_table
from capsella.evaluation.paired import McNemar, mcnemar
from capsella.evaluation.prediction.certainty import Certainty
from capsella.evaluation.prediction.job import Written, predict_table
from capsella.evaluation.prediction.listing import find_images, image_files, passed_over
from capsella.evaluation.prediction.predict import Broken, Prediction, predict_files
from capsella.evaluation.prediction.scale import scaled, set_scale
from capsella.evaluation.prediction.tables import print_table, write_broken, write_table
from capsella.evaluation.rejection.measure import Kept, Rejection, SetSize, measure_rejection
from capsella.evaluation.rejection.table import rejection_table
from capsella.evaluation.robustness.changes import PERTURBATIONS, Perturbation
from capsella.evaluation.robustness.curves import Robustness, RobustnessPoint, measure_robustness, perturbed
from capsella.evaluation.robustness.kept import Changed, KeptAccuracy, kept_accuracies
from capsella.evaluation.shards.job import SIZE as PART_SIZE
from capsella.evaluation.shards.job import predict_shards
from capsella.evaluation.spread import Spread, over_seeds
from capsella.evaluation.wilson import auc_interval, mean_share_interval, wilson_interval
from capsella.models.confidence.reliability import Calibration, calibration
