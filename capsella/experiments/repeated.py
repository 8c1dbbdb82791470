"""The end of a training, and trainings that are repeated: with several seeds, or without each fold of the images."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from capsella.data import Splits
from capsella.errors import CapsellaError, pluralize
from capsella.evaluation import Evaluation, FoldInterval, Folds, Spread
from capsella.experiments import FittedRun, Task, check_images_unchanged, evaluate_run, run_tasks
from capsella.files import write_json
from capsella.report import evaluation_warnings
from capsella.training import ComputeOptions, Recipe, Run, RunFolder, load_run


class Tested(NamedTuple):
    """A run on its test images. others: how many it was trained or validated with."""

    evaluation: Evaluation
    others: int


def train_seeds(recipe: Recipe, seeds: int, folder: Path, name: str, compute: ComputeOptions, console: Console) -> None:
    """One run a seed, in sub-folders; what is trained already is read. seeds.json holds mean and spread.

    Raises:
        CapsellaError: a run of another recipe is in a seed's folder; and what `train` raises.
    """
    chosen = range(recipe.seed, recipe.seed + seeds)
    tasks = [
        Task(
            recipe=replace(recipe, seed=seed),
            folder=folder / f"seed{seed}",
            label=f"seed {seed}",
            cost="seed",
            recipe_name=name,
            compute=compute,
            is_tested=False,
        )
        for seed in chosen
    ]
    tested = _each_tested(tasks, folder, console)
    if not tested:
        return
    errors = {seed: one.evaluation.error for seed, one in zip(chosen, tested, strict=True)}
    spread = Spread.of(list(errors.values()))
    write_json(folder / "seeds.json", {"test_error_percent": errors, "mean": spread.mean, "sd": spread.sd})
    where = escape(str(folder / "seeds.json"))
    console.print(f"test error over {len(errors)} seeds: [bold]{spread}[/] %  →  {where}", soft_wrap=True)


def train_folds(recipe: Recipe, folder: Path, name: str, compute: ComputeOptions, console: Console) -> None:
    """One run a fold, in sub-folders, tested on the fold it did not see; what is trained already is read.

    folds.json holds the numbers of all together, predictions.csv what was said of each image.

    Raises:
        CapsellaError: a run of another recipe is in a fold's folder; and what `train` raises.
    """
    folds = [replace(recipe, data=replace(recipe.data, fold=fold)) for fold in range(recipe.data.folds or 0)]
    tasks = [
        Task(
            recipe=of_fold,
            folder=folder / f"fold{fold}",
            label=f"fold {fold}",
            cost="fold",
            recipe_name=name,
            compute=compute,
            is_tested=False,
        )
        for fold, of_fold in enumerate(folds)
    ]
    if tested := _each_tested(tasks, folder, console):
        _together(tested, folder, console)


def _each_tested(tasks: list[Task], folder: Path, console: Console) -> list[Tested]:
    """Train and test each, those first that are trained already; nothing where another process tests.

    Raises:
        CapsellaError: some are to be trained, and files came to the images of those that have begun, or went.
    """
    RunFolder(folder).check_unused()
    trained = [task for task in tasks if RunFolder(task.folder).is_trained]
    for task in trained:
        RunFolder(task.folder).check_recipe(task.recipe)
    if len(trained) < len(tasks):
        check_images_unchanged([task for task in tasks if task in trained or task.files.checkpoint.exists()])
    tested: dict[str, Tested | None] = {}
    for task in run_tasks(tasks, console):
        if task.files.has_diverged:
            raise CapsellaError(f"{task.folder}: the training diverged; remove the folder to train it again")
        tested[task.label] = _tested(task.folder, console)
        if task not in trained and len(tested) < len(tasks):
            check_images_unchanged([task])  # the next must not be parted otherwise
    return [one for task in tasks if (one := tested[task.label]) is not None]


def _tested(folder: Path, console: Console) -> Tested | None:
    """Of a run; its images are not kept, for the next has its own."""
    found = finish(load_run(folder), console)
    if found is None:
        return None
    evaluation, splits = found
    return Tested(evaluation, len(splits.train) + len(splits.validation))


def _together(tested: list[Tested], folder: Path, console: Console) -> None:
    """Write folds.json and predictions.csv, and print the numbers."""
    folds = Folds([one.evaluation for one in tested], sum(one.others for one in tested))
    write_json(folder / "folds.json", folds.to_dict())
    folds.write_predictions(folder / "predictions.csv")
    pooled = folds.pooled
    lines = [f"[bold red]WARNING: {escape(warning)}[/]" for warning in evaluation_warnings(pooled)]
    each = ", ".join(f"{one.error:.1f}" for one in folds.evaluations)
    lines += [
        f"each image tested once: error [bold]{pooled.error:.2f} %[/] ({pooled.errors} of {len(pooled.labels)}), "
        f"balanced accuracy {pooled.balanced_accuracy:.2f} %",
        f"mean of {pluralize(len(folds.evaluations), 'fold')}: error [bold]{_text(folds.error)}, "
        f"balanced accuracy [bold]{_text(folds.balanced_accuracy)}",
        f"error of each: {each} %",
        f"numbers      {escape(str(folder / 'folds.json'))}",
        f"predictions  {escape(str(folder / 'predictions.csv'))}",
    ]
    console.print("\n".join(lines), soft_wrap=True)


def _text(interval: FoldInterval) -> str:
    mean, low, high = (100 * share for share in interval)
    return f"{mean:.2f} %[/] (95 % interval {low:.2f} to {high:.2f})"


def finish(trained: Run, console: Console) -> tuple[Evaluation, Splits] | None:
    """Evaluate on the test images, write test.json and the report; None where another process does."""
    fitted = trained if isinstance(trained, FittedRun) else evaluate_run(trained)
    evaluation, splits, report = fitted.evaluation, fitted.splits, fitted.report
    if evaluation is None or splits is None:
        return None
    summary = RunFolder(trained.folder).read("summary")
    low, high = evaluation.error_interval
    for warning in evaluation_warnings(evaluation):
        console.print(f"[bold red]WARNING: {escape(warning)}[/]", soft_wrap=True)
    console.print(
        f"test error [bold]{evaluation.error:.2f} %[/] ({evaluation.errors} of {len(evaluation.labels)}; "
        f"95 % interval {low:.2f} to {high:.2f}), balanced accuracy [bold]{evaluation.balanced_accuracy:.2f} %[/]\n"
        f"kept    epoch {summary['best']['epoch']} of {summary['epochs']}\n"
        f"run     {escape(str(trained.folder))}\nreport  {escape(str(report))}",
        soft_wrap=True,
    )
    return evaluation, splits
