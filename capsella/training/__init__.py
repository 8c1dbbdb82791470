"""Recipes, the loop that trains them, and the run folders it leaves.

`calibrate` fits probabilities and OOD detection after a training; `adapt` adapts a network to another domain.
"""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.training.adapt import (
        AdaptOptions,
        Judged,
        adapt_model,
        calibrate_adapted,
        cross_fitted,
        save_adapted,
        take_statistics,
    )
    from capsella.training.calibrate import calibrate_model, calibrate_run, fit_ood_detector
    from capsella.training.devices import is_first_process, is_launched_first
    from capsella.training.gradients import TrainingDivergedError
    from capsella.training.images import images_of, own_splits
    from capsella.training.loop import resume, train
    from capsella.training.options import AugmentOptions, Machine, ModelOptions, OptimizerOptions
    from capsella.training.recipe import Recipe
    from capsella.training.recipe_file import read_recipe, save_recipe
    from capsella.training.run import Run, RunFolder, load_run, new_run_folder, run_names
else:
    __getattr__ = lazy_imports(__name__, __file__)
