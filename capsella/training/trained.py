"""Trained networks by folder: a run, a comparison (its recommended network), or an exported folder."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from capsella.data import ImageSet, pixel_digests, single_images
from capsella.errors import CapsellaError, warn_once
from capsella.files import read_json
from capsella.models import ImageClassifier
from capsella.training.run import Run, RunFolder, load_run, load_splits, run_names


def run_folder(path: Path, *, final: bool = False) -> Path:
    """Return the run folder of a path: for a comparison, that of its recommended network; else the path itself.

    final: of a comparison with folds, the network that was trained on all images and not tested.

    Raises:
        CapsellaError: the comparison recommends no network.
    """
    if (path / "config.json").exists() or not (path / "comparison.json").exists():
        return path
    values = read_json(path / "comparison.json")
    recommended = (values.get("final") if final else None) or values["recommended"]
    if recommended is None:
        raise CapsellaError(f"{path}: this comparison recommends no network; name one of the runs in it")
    return path / str(recommended)


def open_run(path: Path, *, final: bool = False) -> Run:
    """Load a run, and warn if its training was interrupted. final: as for `run_folder`.

    Raises:
        CapsellaError: `path` holds no run, or an exported network, which has neither recipe nor images.
    """
    folder = run_folder(path, final=final)
    if (folder / "model.json").exists() and not (folder / "config.json").exists():
        raise CapsellaError(f"{folder} holds an exported network; this command needs a run, with recipe and images")
    run, files = load_run(folder), RunFolder(folder)
    if files.checkpoint.exists() and not files.is_trained:
        resume = f"capsella train --resume {shlex.quote(str(folder))}"
        warn_once(f"interrupted {folder}", f"{folder}: training was interrupted; continue it with {resume}")
    return run


def open_runs(paths: Sequence[Path]) -> dict[str, Run]:
    """Load runs by the names that tell them apart."""
    return _open_folders([run_folder(path) for path in paths])


def open_runs_with_capsules(paths: Sequence[Path]) -> dict[str, Run]:
    """Load runs as `open_runs`; of a comparison that recommends a CNN, its best network with capsules."""
    folders = []
    for path in paths:
        folder = run_folder(path)
        if folder != path and (capsules := read_json(path / "comparison.json")["capsules"]) is not None:
            if path / str(capsules) != folder:
                warn_once(f"CNN {path}", f"{path} recommends a CNN; the page shows the best capsule network")
            folder = path / str(capsules)
        folders.append(folder)
    return _open_folders(folders)


def _open_folders(folders: Sequence[Path]) -> dict[str, Run]:
    return dict(zip(run_names(folders), map(open_run, folders), strict=True))


def open_network(path: Path, *, final: bool = False) -> tuple[ImageClassifier, Run | None]:
    """Load a network and its run; an exported network has none. final: as for `run_folder`."""
    folder = run_folder(path, final=final)
    if (folder / "model.json").exists() and not (folder / "config.json").exists():
        return ImageClassifier.from_pretrained(folder).eval(), None
    run = open_run(folder)
    return run.model, run


def shared_test_images(runs: Mapping[str, Run], purpose: str) -> tuple[str, ImageSet]:
    """Return the name and the test images of the first run, which must be the test images of all runs.

    Args:
        runs: by name.
        purpose: as for `single_images`.

    Raises:
        CapsellaError: a run was tested on other images, so that these may be among its training images.
    """
    (first, run), *others = runs.items()
    RunFolder(run.folder).check_testable()
    splits, digests = load_splits(run), RunFolder(run.folder).images()
    images = single_images(splits.test, purpose)
    for name, other in others:
        is_same = RunFolder(other.folder).images() == digests and other.recipe.data == run.recipe.data
        if not is_same and _contents(single_images(load_splits(other).test, purpose)) != _contents(images):
            raise CapsellaError(f"{name}: was tested on other images than {first}, or on another size of them")
    return splits.name, images


def _contents(images: ImageSet) -> tuple[object, ...]:
    """Return the classes, the size, and every image's digest and label."""
    digests = sorted(zip(pixel_digests(images), images.labels.tolist(), strict=True))
    return images.classes, images.image_size, images.channels, digests
