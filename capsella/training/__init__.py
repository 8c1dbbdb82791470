"""Recipes, the loop that trains them, and the run folders it writes. `adapt_model` adapts a network to a domain."""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.training.adapt import (
        HeldOutPredictions,
        adapt_model,
        calibrate_adapted,
        predict_held_out,
        save_adapted,
        update_batch_norms,
    )
    from capsella.training.config import AdaptOptions, AugmentOptions, ComputeOptions, ModelOptions, OptimizerOptions
    from capsella.training.devices import is_first_process, is_launched_first
    from capsella.training.loop import resume, train
    from capsella.training.progress import TrainingDivergedError, best_validation
    from capsella.training.recipe import Recipe, flatten, read_recipe, save_recipe
    from capsella.training.registry import get_recipe, recipe_modules, train_command
    from capsella.training.run import (
        Run,
        RunFolder,
        load_run,
        load_run_splits,
        load_splits,
        new_run_folder,
        run_names,
    )
else:
    __getattr__ = lazy_imports(__name__, __file__)
