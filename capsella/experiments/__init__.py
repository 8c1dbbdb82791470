"""Experiments: fit a recipe, run a list of trainings, search for better hyper-parameters."""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.experiments.fit import (
        CorrectnessTable,
        FittedRun,
        evaluate_run,
        load_public_once,
        reevaluate,
        train_or_resume,
        unpack_correct,
    )
    from capsella.experiments.runner import (
        Results,
        Row,
        Runner,
        Stopwatch,
        Task,
        ValidationResult,
        check_images_unchanged,
        check_seeds,
        common_seeds,
        format_duration,
        run_tasks,
        scaled_learning_rate,
        with_learning_rate,
    )
else:
    __getattr__ = lazy_imports(__name__, __file__)
