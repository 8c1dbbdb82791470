"""Repeated trainings, with several seeds or on each fold of the images, and the summary printed after a training."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.markup import escape

from capsella.errors import CapsellaError
from capsella.evaluation import Evaluation, Folds, over_seeds
from capsella.evaluation.label_errors import rank_labels, write_label_ranking
from capsella.experiments.fit import FittedRun, TestPredictions, evaluate_run, read_test_predictions
from capsella.experiments.runner import Task, run_tasks
from capsella.files import write_json
from capsella.report import evaluation_warnings
from capsella.training import ComputeOptions, Recipe, Run, RunFolder, load_run, resume


def train_seeds(recipe: Recipe, seeds: int, folder: Path, name: str, compute: ComputeOptions, console: Console) -> None:
    """Train and test one run per seed in subfolders, and write seeds.json with mean and standard deviation.

    Finished runs are not trained again.

    Raises:
        CapsellaError: a subfolder holds a run of another recipe; or as for `train`.
    """
    numbers = range(recipe.seed, recipe.seed + seeds)
    recipes = {seed: replace(recipe, seed=seed) for seed in numbers}
    tested = _fit_each(recipes, "seed", folder, name, compute, console)
    if not tested:  # not the first process of a distributed training
        return
    errors = {seed: evaluation.error for seed, evaluation in zip(numbers, tested, strict=True)}
    values, path = list(errors.values()), folder / "seeds.json"
    write_json(path, {"test_error_percent": errors, "mean": mean(values), "sd": stdev(values)})
    text = over_seeds(values)
    console.print(f"test error over {len(errors)} seeds: [bold]{text}[/] %  →  {escape(str(path))}", soft_wrap=True)


def train_folds(recipe: Recipe, folder: Path, name: str, compute: ComputeOptions, console: Console) -> None:
    """Train one run per fold in subfolders and test it on the fold that it did not see.

    Finished runs are not trained again. folds.json holds the results of all folds together, predictions.csv the
    prediction for each image, label_errors.csv every image, the one whose label is most probably wrong first.

    Raises:
        CapsellaError: a subfolder holds a run of another recipe; or as for `train`.
    """
    recipes = {fold: replace(recipe, data=replace(recipe.data, fold=fold)) for fold in range(recipe.data.folds or 0)}
    evaluations = _fit_each(recipes, "fold", folder, name, compute, console)
    if not evaluations:
        return
    folds = Folds(evaluations)
    write_json(folder / "folds.json", folds.to_dict())
    folds.write_predictions(folder / "predictions.csv")
    suspects = _rank_labels(folder, len(recipes))
    pooled = folds.pooled
    _print_warnings(pooled, console)
    errors = ", ".join(f"{evaluation.error:.1f}" for evaluation in evaluations)
    console.print(
        f"each image tested once: error [bold]{pooled.error:.2f} %[/] ({pooled.errors} of {len(pooled.labels)}; "
        f"95 % interval {_format(folds.error_interval)}), balanced accuracy [bold]{pooled.balanced_accuracy:.2f} %[/] "
        f"({_format(folds.balanced_accuracy_interval)})\n"
        f"error per fold: {errors} %\n"
        f"numbers      {escape(str(folder / 'folds.json'))}\n"
        f"predictions  {escape(str(folder / 'predictions.csv'))}\n"
        f"labels       {escape(str(folder / 'label_errors.csv'))}: {suspects} may be wrong",
        soft_wrap=True,
    )


def _rank_labels(folder: Path, folds: int) -> int:
    """Write label_errors.csv from the predictions of every fold; return the number of labels that may be wrong."""
    tested = TestPredictions.of_folds([read_test_predictions(folder / f"fold{fold}") for fold in range(folds)])
    ranking = rank_labels(tested.labels, tested.probabilities)
    write_label_ranking(folder / "label_errors.csv", ranking, tested.labels, tested.classes, tested.files)
    return len(ranking.suspects)


def _fit_each(
    recipes: Mapping[int, Recipe], what: str, folder: Path, name: str, compute: ComputeOptions, console: Console
) -> list[Evaluation]:
    """Train and test each recipe, finished ones first; return nothing in other processes than the first."""
    RunFolder(folder).check_unused()
    tasks = [
        Task(
            recipe=recipe,
            folder=folder / f"{what}{number}",
            label=f"{what} {number}",
            recipe_name=name,
            cost=what,
            compute=compute,
            is_tested=False,
        )
        for number, recipe in recipes.items()
    ]
    tested: dict[Path, Evaluation] = {}
    for task in run_tasks(tasks, console):
        if task.files.has_diverged:
            raise CapsellaError(f"{task.folder}: the training diverged; remove the folder to train it again")
        run = finish(load_run(task.folder), console)
        if run.evaluation is not None:
            tested[task.folder] = run.evaluation
    return [tested[task.folder] for task in tasks if task.folder in tested]


def finish(run: Run, console: Console) -> FittedRun:
    """Test a run and write its report, unless this was done, and print the result; only in the first process."""
    fitted = run if isinstance(run, FittedRun) else evaluate_run(run)
    evaluation = fitted.evaluation
    if evaluation is None:
        return fitted
    summary = RunFolder(run.folder).read("summary")
    _print_warnings(evaluation, console)
    console.print(
        f"test error [bold]{evaluation.error:.2f} %[/] ({evaluation.errors} of {len(evaluation.labels)}; "
        f"95 % interval {_format(evaluation.error_interval)}), balanced accuracy "
        f"[bold]{evaluation.balanced_accuracy:.2f} %[/]\n"
        f"kept    epoch {summary['best']['epoch']} of {summary['epochs']}\n"
        f"run     {escape(str(run.folder))}\nreport  {escape(str(fitted.report))}",
        soft_wrap=True,
    )
    return fitted


def resume_run(folder: Path, changes: Mapping[str, Any], console: Console) -> FittedRun:
    """Continue an interrupted training, with some `ComputeOptions` replaced, and test it.

    Raises:
        CapsellaError: the folder holds no run; or as for `resume`.
    """
    files = RunFolder(folder)
    compute = replace(files.read_compute(), **changes)
    if files.is_final:
        console.print(f"{folder} learns from all images, so it is not tested", soft_wrap=True, markup=False)
    elif files.is_trained:
        console.print(f"{folder} is already trained; testing it again", soft_wrap=True, markup=False)
    return finish(resume(folder, compute=compute, console=console), console)


def _print_warnings(evaluation: Evaluation, console: Console) -> None:
    for warning in evaluation_warnings(evaluation):
        console.print(f"[bold red]WARNING: {escape(warning)}[/]", soft_wrap=True)


def _format(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2f} to {interval[1]:.2f}"
