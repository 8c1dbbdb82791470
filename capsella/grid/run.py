"""One run from recipe to test error: trained where it is not, resumed where it was interrupted, tested once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.data import DataOptions, Splits, load_data
from capsella.errors import CapsellaError
from capsella.evaluation import Evaluation, evaluate
from capsella.files import write_json
from capsella.models import ImageClassifier
from capsella.training import Recipe, Run, load_run, resume, train
from capsella.training.command import command
from capsella.training.run import read_config


def finish_run(run: Run, *, progress: bool = True) -> tuple[Evaluation, Splits]:
    """Evaluate on the test images; writes test.json and result.json into the run's folder."""
    splits = load_data(run.recipe.data)
    evaluation = evaluate(run.model, splits.test, progress=progress)
    write_json(run.folder / "test.json", evaluation.to_dict())
    write_json(run.folder / "result.json", result(run, evaluation, splits.name))
    return evaluation, splits


def result(run: Run, evaluation: Evaluation, data: str) -> dict[str, Any]:
    """What a run's result.json holds; copied to results/, it is a row of docs/reference/results.md.

    `data`: what the images are called.
    """
    summary = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))
    return {
        "command": command(run.name, run.recipe),
        "seed": run.recipe.seed,
        "environment": run.environment,
        "data": data,
        "recipe": run.recipe.to_dict(),
        "test": _test_values(evaluation),
        "training": summary,
    }


def _test_values(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "images": len(evaluation.labels),
        "errors": evaluation.errors,
        "error_percent": evaluation.error,
        "error_interval_95_percent": list(evaluation.error_interval),
    }


def result_of(recipe: Recipe, folder: Path, name: str, console: Console) -> dict[str, Any]:
    """The result of `recipe` in `folder`: read where it is there, else trained, or resumed, and tested.

    Raises:
        CapsellaError: a run of another recipe is in `folder`; and what `train` raises.
    """
    _check_recipe(recipe, folder)
    if not (folder / "result.json").exists():
        finish_run(trained_run(recipe, folder, name, console), progress=False)
    values: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return values


def evaluated_again(
    folder: Path,
    name: str,
    data: DataOptions,
    change: Callable[[ImageClassifier], ImageClassifier] | None = None,
) -> dict[str, Any]:
    """What a finished run makes of other test images, or its network of the same ones in another way; read where it is.

    Args:
        folder: of the run.
        name: of the JSON file in it.
        data: whose test images are taken.
        change: from the trained network to the one that is tested.

    Returns:
        The images' name ("data"), and what a result holds under "test".

    Raises:
        CapsellaError: no finished run is in `folder`.
    """
    path = folder / f"{name}.json"
    if not path.exists():
        splits = load_data(data)
        model = load_run(folder).model
        evaluation = evaluate(model if change is None else change(model).eval(), splits.test)
        write_json(path, {"data": splits.name, **_test_values(evaluation)})
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def trained_run(recipe: Recipe, folder: Path, name: str, console: Console) -> Run:
    """The run of `recipe` in `folder`: loaded where it is trained, else trained, or resumed; not tested.

    Raises:
        CapsellaError: a run of another recipe is in `folder`; and what `train` raises.
    """
    _check_recipe(recipe, folder)
    if (folder / "summary.json").exists():
        return load_run(folder)
    if (folder / "last.ckpt").exists():
        return resume(folder, console=console)
    (folder / "config.json").unlink(missing_ok=True)  # ended before its first checkpoint: nothing to resume from
    return train(recipe, folder, name=name, console=console)


def _check_recipe(recipe: Recipe, folder: Path) -> None:
    if (folder / "config.json").exists() and read_config(folder)[1] != recipe:
        raise CapsellaError(f"{folder} holds a run of another recipe; choose another folder, or move that one away")
