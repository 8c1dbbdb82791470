"""Fit a recipe: train and calibrate its network, test it once, and write result.json and report.html."""

import base64
import csv
import dataclasses
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from rich.console import Console

from capsella.data import DataOptions, LabelledImages, Splits, load_once
from capsella.errors import CapsellaError
from capsella.evaluation import Evaluation, Groups, Interval, VarianceComponent, difference_interval, evaluate
from capsella.files import write_csv
from capsella.models import ImageClassifier
from capsella.models.inference import inference
from capsella.training import (
    ComputeOptions,
    Recipe,
    Run,
    RunFolder,
    is_first_process,
    load_run,
    load_run_splits,
    new_run_folder,
    resume,
    train,
    train_command,
)


@dataclass(frozen=True)
class FittedRun(Run):
    """A run that was trained and tested.

    evaluation: its evaluation on the test images; None for the final network of a comparison and, in a distributed
    training, except in the first process.
    report: the path of report.html, if it was written.
    """

    evaluation: Evaluation | None = None
    report: Path | None = None


def fit(
    recipe: Recipe,
    folder: Path | None = None,
    *,
    name: str = "unnamed",
    compute: ComputeOptions = ComputeOptions(),
    console: Console | None = None,
    splits: Splits | None = None,
) -> FittedRun:
    """Train a recipe in a new run folder, calibrate the network, test it, and write result.json and report.html.

    Args:
        recipe: what to train.
        folder: the run folder; default: runs/NAME, numbered if that exists.
        name: name of the run.
        compute: where to train.
        console: where progress is printed; default: the standard output.
        splits: the images of the recipe, if they are loaded already.

    Returns:
        The run with the weights that the recipe keeps, its splits and its evaluation.

    Raises:
        CapsellaError: `folder` already holds a run, data is missing or broken, or the disk is full.
        TrainingDivergedError: the loss or a gradient became NaN or infinite.
    """
    folder = folder or new_run_folder(Path("runs"), name)
    return evaluate_run(train(recipe, folder, name=name, compute=compute, console=console, splits=splits))


def evaluate_run(run: Run, *, report: bool = True, progress: bool = True) -> FittedRun:
    """Test a trained run on its test images, and write test.json, result.json, test_predictions.csv and the report.

    After a distributed training, only the first process does this. The final network of a comparison is not tested.
    """
    values = {field.name: getattr(run, field.name) for field in dataclasses.fields(Run)}
    files = RunFolder(run.folder)
    if files.is_final or not is_first_process():
        return FittedRun(**values)
    splits = run.splits or load_run_splits(files, run.recipe.data, load_public_once(run.recipe.data))
    values["splits"] = splits
    evaluation = evaluate(run.model, splits.test, progress=progress)
    files.write("test", evaluation.to_dict())
    if evaluation.labels.ndim == 1:
        write_test_predictions(run, evaluation)
    page = _write_report(run, splits, evaluation) if report else None
    result = {
        "command": train_command(run.name, run.recipe),
        "seed": run.recipe.seed,
        "environment": run.environment,
        "data": splits.name,
        "recipe": run.recipe.to_dict(),
        "test": _test_values(evaluation),
        "training": files.read("summary"),
    }
    files.write("result", result)  # last: with it, the run counts as tested
    return FittedRun(**values, evaluation=evaluation, report=page)


class TestPredictions(NamedTuple):
    """The predictions of a run for its test images.

    files: names of the images, or their indices. labels, predicted: class indices. probabilities: calibrated
    probabilities. groups: the index of each image's group; None if images are independent.
    """

    files: tuple[str, ...]
    labels: Int[np.ndarray, " n"]
    predicted: Int[np.ndarray, " n"]
    probabilities: Float[np.ndarray, "n classes"]
    groups: Groups | None
    classes: tuple[str, ...]

    @classmethod
    def of_folds(cls, parts: Sequence[Self]) -> Self:
        """Return the predictions of all folds together; groups of different folds are kept apart."""
        groups, known = None, [part.groups for part in parts if part.groups is not None]
        if len(known) == len(parts):
            folds = np.repeat(range(len(parts)), [len(part.files) for part in parts])
            pairs = np.stack([folds, np.concatenate(known)])
            groups = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
        return cls(
            tuple(file for part in parts for file in part.files),
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.predicted for part in parts]),
            np.concatenate([part.probabilities for part in parts]),
            groups,
            parts[0].classes,
        )


def write_test_predictions(run: Run, evaluation: Evaluation) -> None:
    """Write test_predictions.csv: a row per test image, with its class, the predicted one, and probabilities."""
    classes, calibration = evaluation.classes, run.model.calibration
    activations = evaluation.activations.double()
    shares = activations / activations.sum(1, keepdim=True).clamp(min=1e-9)
    probabilities = shares if calibration is None else calibration.probabilities(activations)
    groups = [""] * len(activations) if evaluation.group is None else evaluation.group.tolist()
    files = evaluation.files or [str(k) for k in range(len(activations))]
    labels, predicted = (
        [classes[k] for k in column.tolist()] for column in (evaluation.labels, evaluation.predictions)
    )
    texts = ([f"{p:.6g}" for p in row] for row in probabilities.tolist())
    rows = ((*start, *text) for *start, text in zip(files, labels, predicted, groups, texts, strict=True))
    header = ("file", "class", "predicted", "group", *(f"p {name}" for name in classes))
    write_csv(run.folder / "test_predictions.csv", header, rows)


def read_test_predictions(folder: Path) -> TestPredictions:
    """Read test_predictions.csv of a run folder.

    Raises:
        CapsellaError: it is missing or damaged.
    """
    path = folder / "test_predictions.csv"
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
            header, *rows = csv.reader(text)
        index = {name.removeprefix("p "): k for k, name in enumerate(header[4:])}
        labels, predicted = (np.array([index[row[column]] for row in rows]) for column in (1, 2))
        probabilities = np.array([[float(value) for value in row[4:]] for row in rows])
        groups = None if any(row[3] == "" for row in rows) else np.array([int(row[3]) for row in rows])
        return TestPredictions(tuple(row[0] for row in rows), labels, predicted, probabilities, groups, tuple(index))
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise CapsellaError(f"{path}: must hold the predictions of a tested run: {error!r}") from error


def _write_report(run: Run, splits: Splits, evaluation: Evaluation) -> Path:
    from capsella.report import about_training, run_facts, write_report  # matplotlib would delay the first step

    files = RunFolder(run.folder)
    summary = files.read("summary")
    facts = run_facts(run, splits, summary, _milliseconds(run.model, splits.test))
    training = about_training(run, splits, summary)
    return write_report(run.folder, run.model, evaluation, splits.test, files.metrics, run.name, facts, training)


def _milliseconds(model: ImageClassifier, images: LabelledImages) -> float:
    """Return the median time of a few calls with one image, in milliseconds."""
    from capsella.bench import time_in_turns  # would delay the first step

    pixels = images.take(torch.tensor([0])).images.float() / 255
    with inference(model) as device:
        pixels = pixels.to(device)
        seconds = time_in_turns({"network": lambda: model(pixels)}, 5, warm_up=1, device=device)["network"]
    return 1000 * statistics.median(seconds)


def train_or_resume(
    recipe: Recipe,
    folder: Path,
    name: str,
    console: Console,
    compute: ComputeOptions = ComputeOptions(),
    splits: Splits | None = None,
    until: int | None = None,
) -> Run:
    """Load, resume or train the run of `recipe` in `folder`, without testing it, and return it.

    `splits` are the images of the recipe, if they are loaded already. `until` is the epoch after which training stops,
    to be resumed later.

    Raises:
        CapsellaError: `folder` holds a run of another recipe; or as for `train`.
    """
    files = RunFolder(folder)
    files.check_recipe(recipe)
    if files.is_trained:
        return load_run(folder)
    splits = splits or load_public_once(recipe.data)
    with files.lock(compute):
        if files.is_trained:  # by another process, while the images were loaded
            return load_run(folder)
        has_begun = files.checkpoint.exists()
        if not has_begun:
            files.discard_unstarted()
    if has_begun:
        return resume(folder, compute=compute, console=console, until=until, splits=splits)
    return train(recipe, folder, name=name, compute=compute, console=console, until=until, splits=splits)


def load_public_once(data: DataOptions) -> Splits | None:
    """Return the images of a public data set, cached for the next run; None for a user's own, which may change."""
    return None if data.paths else load_once(data)


def reevaluate(
    folder: Path,
    name: str,
    images: DataOptions | Callable[[], tuple[str, LabelledImages]],
    change: Callable[[ImageClassifier], ImageClassifier] | None = None,
) -> dict[str, Any]:
    """Test a finished run on other images, or a changed network, and cache the result in `folder`/`name`.json.

    Args:
        folder: the run folder.
        name: the JSON file, which is read if it exists.
        images: options, whose test images are loaded, or a function that returns the name of a set and the set itself.
        change: a function from the trained network to the one to test.

    Returns:
        The name of the images ("data"), and what result.json holds under "test".

    Raises:
        CapsellaError: `folder` holds no finished run.
    """
    files = RunFolder(folder)
    if not (folder / f"{name}.json").exists():
        if not files.is_trained:
            raise CapsellaError(f"{folder}: must hold a finished run")
        if isinstance(images, DataOptions):
            splits = load_once(images)
            data, test_set = splits.name, splits.test
        else:
            data, test_set = images()
        model = load_run(folder).model
        evaluation = evaluate(model if change is None else change(model).eval(), test_set)
        files.write(name, {"data": data, **_test_values(evaluation)})
    return files.read(name)


def _test_values(evaluation: Evaluation) -> dict[str, Any]:
    values = {
        "images": len(evaluation.labels),
        "errors": evaluation.errors,
        "error_percent": evaluation.error,
        "error_interval_95_percent": list(evaluation.error_interval),
        "correct": base64.b64encode(np.packbits(evaluation.correct.numpy()).tobytes()).decode(),
    }
    return values if evaluation.groups is None else values | {"groups": pack_groups(evaluation.groups)}


class CorrectnessTable(NamedTuple):
    """A table of which images of one test set each seed of a row classifies correctly.

    groups: the index of each image's group, e.g. its patient or object; None if all images are independent.
    """

    correct: Bool[np.ndarray, "seeds images"]
    groups: Groups | None = None

    @classmethod
    def from_tests(cls, tests: Sequence[Mapping[str, Any]]) -> Self:
        """Return the correctness of each image from the test results of several seeds.

        Raises:
            ValueError: the results have different numbers of images.
        """
        correct = np.stack([unpack_correct(test) for test in tests])
        return cls(correct, _unpack_groups(tests[0]["groups"]) if "groups" in tests[0] else None)

    def difference_from(
        self,
        other: "CorrectnessTable",
        *,
        paired_seeds: bool = False,
        seed_variance: VarianceComponent | None = None,
    ) -> Interval:
        """Return the difference of accuracies (self − other) on the same images (see `difference_interval`).

        Raises:
            ValueError: another number of images.
        """
        return difference_interval(
            self.correct, other.correct, self.groups, paired_seeds=paired_seeds, seed_variance=seed_variance
        )


def unpack_correct(test: Mapping[str, Any]) -> Bool[np.ndarray, " images"]:
    """Return which test images a run classified correctly, from what its result holds under "test".

    >>> unpack_correct({"images": 3, "correct": "oA=="})
    array([ True, False,  True])
    """
    bits = np.frombuffer(base64.b64decode(test["correct"]), dtype=np.uint8)
    return np.unpackbits(bits, count=test["images"]).astype(bool)


def pack_groups(groups: Groups) -> str:
    """Encode group indices as 32-bit little-endian integers, compressed with zlib, in base64."""
    numbers = np.unique(groups, return_inverse=True)[1].astype("<u4")
    return base64.b64encode(zlib.compress(numbers.tobytes(), 9)).decode()


def _unpack_groups(groups: str) -> Groups:
    """Decode what `pack_groups` returned."""
    return np.frombuffer(zlib.decompress(base64.b64decode(groups)), "<u4").astype(int)
