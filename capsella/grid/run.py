"""One run from recipe to test error: trained where it is not, resumed where it was interrupted, tested once."""

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Bool
from rich.console import Console

from capsella.data import DataOptions, LabelledImages, Splits, load_once
from capsella.errors import CapsellaError
from capsella.evaluation import Evaluation, Groups, Interval, difference_interval, evaluate
from capsella.models import ImageClassifier
from capsella.training import Machine, Recipe, Run, RunFolder, images_of, load_run, resume, train
from capsella.training.command_line import command


def finish_run(run: Run, *, progress: bool = True) -> tuple[Evaluation, Splits]:
    """Evaluate on the test images; writes test.json and result.json into the run's folder."""
    splits = images_of(RunFolder(run.folder), run.recipe.data, loaded_once(run.recipe.data))
    evaluation = evaluate(run.model, splits.test, progress=progress)
    files = RunFolder(run.folder)
    files.write("test", evaluation.to_dict())
    files.write("result", result(run, evaluation, splits.name))
    return evaluation, splits


def result(run: Run, evaluation: Evaluation, data: str) -> dict[str, Any]:
    """What a run's result.json holds; copied to results/, it is a row of docs/reference/results.md.

    `data`: what the images are called.
    """
    return {
        "command": command(run.name, run.recipe),
        "seed": run.recipe.seed,
        "environment": run.environment,
        "data": data,
        "recipe": run.recipe.to_dict(),
        "test": _test_values(evaluation),
        "training": RunFolder(run.folder).read("summary"),
    }


def _test_values(evaluation: Evaluation) -> dict[str, Any]:
    values = {
        "images": len(evaluation.labels),
        "errors": evaluation.errors,
        "error_percent": evaluation.error,
        "error_interval_95_percent": list(evaluation.error_interval),
        "correct": base64.b64encode(np.packbits(evaluation.correct.numpy()).tobytes()).decode(),
    }
    return values if evaluation.groups is None else values | {"groups": packed(evaluation.groups)}


def packed(groups: Groups) -> str:
    """Groups as a result keeps them: numbers from 0 in 32 bits, little-endian, zlib, base64."""
    numbers = np.unique(groups, return_inverse=True)[1].astype("<u4")
    return base64.b64encode(zlib.compress(numbers.tobytes(), 9)).decode()


class Hits(NamedTuple):
    """Which images of one test set the seeds of a row have right.

    groups: the number of each image's patient or toy; None where every image stands for itself.
    """

    right: Bool[np.ndarray, "seeds images"]
    groups: Groups | None = None

    @classmethod
    def of(cls, tests: Sequence[Mapping[str, Any]]) -> Self:
        """From what the seeds' results hold under "test"; groups from any of them, for early ones have none.

        Raises:
            CapsellaError: a result from before this was kept.
            ValueError: of different numbers of images, or other groups.
        """
        right = np.stack([hits_of(test) for test in tests])
        return cls(right, _common([_unpacked(test["groups"]) for test in tests if "groups" in test]))

    def gain_over(self, other: "Hits") -> Interval:
        """How much more often these seeds are right than another row's on the same images, as `difference_interval`.

        Raises:
            ValueError: other images, or other groups.
        """
        groups = _common([one.groups for one in (self, other) if one.groups is not None])
        return difference_interval(self.right, other.right, groups)


def _common(every: Sequence[Groups]) -> Groups | None:
    """The groups that all have; None of none."""
    if any(not np.array_equal(every[0], one) for one in every[1:]):
        raise ValueError("groups: must be the same for all results of a test")
    return every[0] if every else None


def _unpacked(groups: str) -> Groups:
    """What `packed` made, undone."""
    return np.frombuffer(zlib.decompress(base64.b64decode(groups)), "<u4").astype(int)


def hits_of(test: Mapping[str, Any]) -> Bool[np.ndarray, " images"]:
    """Which test images a run had right, from what its result holds under "test".

    Raises:
        CapsellaError: a result from before this was kept.

    >>> hits_of({"images": 3, "correct": "oA=="})
    array([ True, False,  True])
    """
    if "correct" not in test:
        raise CapsellaError("the result does not say which images were right: it is of an earlier version of capsella")
    bits = np.frombuffer(base64.b64decode(test["correct"]), dtype=np.uint8)
    return np.unpackbits(bits, count=test["images"]).astype(bool)


def result_of(
    recipe: Recipe, folder: Path, name: str, console: Console, machine: Machine = Machine()
) -> dict[str, Any]:
    """The result of `recipe` in `folder`: read where it is there, else trained, or resumed, and tested.

    Raises:
        CapsellaError: a run of another recipe is in `folder`; and what `train` raises.
    """
    files = RunFolder(folder)
    files.check_recipe(recipe)
    if not files.is_tested:
        finish_run(trained_run(recipe, folder, name, console, machine), progress=False)
    return files.read("result")


def trained_run(recipe: Recipe, folder: Path, name: str, console: Console, machine: Machine = Machine()) -> Run:
    """The run of `recipe` in `folder`: loaded where it is trained, else trained, or resumed; not tested.

    Raises:
        CapsellaError: a run of another recipe is in `folder`; and what `train` raises.
    """
    files = RunFolder(folder)
    files.check_recipe(recipe)
    if files.is_trained:
        return load_run(folder)
    splits = loaded_once(recipe.data)
    with files.alone(machine):
        if files.is_trained:  # by another process, while the images were loaded
            return load_run(folder)
        has_begun = files.checkpoint.exists()
        if not has_begun:
            files.forget_start()
    if has_begun:
        return resume(folder, machine=machine, console=console, splits=splits)
    return train(recipe, folder, name=name, machine=machine, console=console, splits=splits)


def loaded_once(data: DataOptions) -> Splits | None:
    """The images of a public set, kept in memory for the next run on them; None for one's own, which may change."""
    return None if data.is_own else load_once(data)


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

    def images() -> tuple[str, LabelledImages]:
        splits = load_once(data)
        return splits.name, splits.test

    return evaluated_on(folder, name, images, change)


def evaluated_on(
    folder: Path,
    name: str,
    images: Callable[[], tuple[str, LabelledImages]],
    change: Callable[[ImageClassifier], ImageClassifier] | None = None,
) -> dict[str, Any]:
    """As `evaluated_again`, on any images.

    Args:
        folder, name, change: as there.
        images: gives their name, and them; only called where the JSON is missing.

    Raises:
        CapsellaError: no finished run is in `folder`.
    """
    files = RunFolder(folder)
    if not (folder / f"{name}.json").exists():
        if not files.is_trained:
            raise CapsellaError(f"{folder}: must hold a finished run, but no training has ended there")
        called, tested = images()
        model = load_run(folder).model
        evaluation = evaluate(model if change is None else change(model).eval(), tested)
        files.write(name, {"data": called, **_test_values(evaluation)})
    return files.read(name)
