"""Recipes, the loop that trains them, and the run folders it leaves."""

from capsella.training.devices import is_first_process
from capsella.training.loop import TrainingDivergedError, resume, train
from capsella.training.recipe import RECIPES, AugmentOptions, OptimizerOptions, Recipe, get_recipe
from capsella.training.run import Run, load_run, new_run_folder

__all__ = [
    "RECIPES",
    "AugmentOptions",
    "OptimizerOptions",
    "Recipe",
    "Run",
    "TrainingDivergedError",
    "get_recipe",
    "is_first_process",
    "load_run",
    "new_run_folder",
    "resume",
    "train",
]
