"""Several runs on one command line."""

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from capsella.data import ImageSet, pixel_digests, single_images
from capsella.errors import CapsellaError
from capsella.training import Run, RunFolder, load_run, load_splits, run_names
from capsella.training.checkpoint import read_progress


def load_runs(folders: Sequence[Path]) -> dict[str, Run]:
    """Runs by what `run_names` calls them; says which were interrupted.

    Raises:
        ValueError: as `run_names`.
        CapsellaError: a folder is no run's.
    """
    return dict(zip(run_names(folders), map(open_run, folders), strict=True))


def open_run(folder: Path) -> Run:
    """As `load_run`; says so where the training was interrupted."""
    run, files = load_run(folder), RunFolder(folder)
    if files.checkpoint.exists() and not files.is_trained:
        try:
            done = read_progress(files.checkpoint).epoch
        except CapsellaError as error:  # the weights that were kept are whole all the same
            print(f"WARNING: this training was interrupted, and {error}", file=sys.stderr)
            return run
        print(
            f"WARNING: this training was interrupted after epoch {done} of {run.recipe.epochs}; "
            f"capsella train --resume {shlex.quote(str(folder))} goes on",
            file=sys.stderr,
        )
    return run


def shared_test_images(runs: Mapping[str, Run], purpose: str) -> tuple[str, ImageSet]:
    """The name of the first run's images, and its test images.

    The others' must be the same, whatever flags or split file they come from, so that they are new to every run.

    `purpose`: as for `single_images`.

    Raises:
        CapsellaError: a run was tested on other images.
    """
    (first, trained), *others = runs.items()
    splits = load_splits(trained, skip_broken=True)
    test = single_images(splits.test, purpose)
    learned = RunFolder(trained.folder).images()
    for name, other in others:
        same = other.recipe.data == trained.recipe.data and RunFolder(other.folder).images() == learned
        if same and learned is not None:  # the same options alone say nothing of a folder that grew in between
            continue
        if difference := _difference(test, single_images(load_splits(other, skip_broken=True).test, purpose)):
            raise CapsellaError(f"{name}: its test images must be those of {first}, {difference}")
    return splits.name, test


def _difference(first: ImageSet, other: ImageSet) -> str:
    """What tells two sets apart, in words; "" where they hold the same images of the same classes, in any order."""
    if first.classes != other.classes:
        return f"but the classes are {', '.join(first.classes)} there and {', '.join(other.classes)} here"
    if first.images.shape[1:] != other.images.shape[1:]:
        there, here = ("×".join(map(str, (*one.image_size, one.channels))) for one in (first, other))
        return f"but they are {there} there and {here} here"
    known = _digests(first)
    shared = (known & _digests(other)).total()
    if shared == known.total() == len(other):
        return ""
    return f"but of {len(first)} there and {len(other)} here {shared} are the same"


def _digests(images: ImageSet) -> Counter[tuple[str, int]]:
    """Pixels and label of each image, counted."""
    return Counter(zip(pixel_digests(images), images.labels.tolist(), strict=True))
