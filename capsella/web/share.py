"""Writes trained runs as one HTML file, which needs neither a server nor an internet connection."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsella.errors import CapsellaError, check_argument, check_minimum
from capsella.files import write_text
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.training import Run, RunFolder, load_splits, run_names
from capsella.web.arrays import Arrays
from capsella.web.images import encode_test_images
from capsella.web.page import add_training, page_content, page_html, page_title

MAX_IMAGES = 20
MAX_MEGABYTES = 10.0  # most mail servers accept this; the demo's page has 3 MB
_TASK = ("image_size", "channels", "classes", "value_range", "cut", "fit")


@dataclass(frozen=True)
class SharedPage:
    """A written page. images: indices of the shown images in the test set, by name of the run."""

    path: Path
    megabytes: float
    images: dict[str, tuple[int, ...]]


def share_runs(
    runs: Sequence[Run],
    out: Path,
    *,
    images: int = MAX_IMAGES,
    megabytes: float = MAX_MEGABYTES,
    network: bool = False,
    training: bool = False,
) -> SharedPage:
    """Write one HTML page of one or two runs, with some of their test images inside.

    Args:
        runs: runs of capsule networks, or of one and a CNN, which the page shows the same changed images.
        out: path of the file.
        images: maximum number of test images of each run.
        megabytes: maximum size of the file, in 10⁶ bytes.
        network: include the networks, so that readers can try their own images.
        training: include the first run's training images, small and in grey, from which a capsule network can learn in
            the page.

    Raises:
        ArgumentError: no run, more than two, or duplicates; no images.
        CapsellaError: a CNN alone, or one for other images; too large a page; `network` for images that a page cannot
            preprocess.
    """
    check_minimum(1, images=images)
    check_argument(megabytes > 0, "be above 0", megabytes=megabytes)
    check_argument(1 <= len(runs) <= 2, "be one, or two to compare", runs=len(runs))
    with_capsules, cnn = split_cnn(dict(zip(run_names([run.folder for run in runs]), runs, strict=True)))
    named = {name: capsules_of(run) for name, run in with_capsules.items()}
    tests = [load_splits(run).test for run in with_capsules.values()]
    seen = [encode_test_images(model, test) for model, test in zip(named.values(), tests, strict=True)]
    arrays = Arrays()
    facts, chosen = page_content(named, seen, images, arrays, network=network, cnn=cnn)
    if training:
        facts["training"] = add_training(load_splits(next(iter(with_capsules.values()))), arrays)
    html = page_html(page_title(named), {**facts, "arrays": arrays.table}, arrays.packed())
    size = len(html.encode()) / 1e6
    if size > megabytes:
        raise CapsellaError(
            f"the page would have {size:.1f} MB, more than the {megabytes:g} of --megabytes. Allow it with --megabytes "
            f"{math.ceil(size)}, take fewer --images, or train with a smaller decoder, e.g. --model-kwargs "
            "decoder_width=256"
        )
    write_text(out, html)
    return SharedPage(out, size, dict(zip(named, [images.numbers for images in chosen], strict=True)))


def split_cnn(runs: Mapping[str, Run]) -> tuple[dict[str, Run], tuple[str, ImageClassifier] | None]:
    """Split runs, by name, into those of capsule networks and, beside a single one of these, at most one CNN.

    Raises:
        CapsellaError: only CNNs, a CNN among more than two runs, or a CNN for or trained on other images.
    """
    own = {name: run for name, run in runs.items() if isinstance(run.model, CapsuleClassifier)}
    others = [name for name in runs if name not in own]
    if not own:
        capsules_of(next(iter(runs.values())))
    if not others:
        return own, None
    if len(runs) > 2:
        raise CapsellaError(f"a CNN stands beside one capsule network: give these two runs, got {', '.join(runs)}")
    (name,), (first,) = others, own.values()
    cnn = runs[name].model
    differ = [key for key in _TASK if getattr(cnn, key) != getattr(first.model, key)]
    if differ or _digests(runs[name]) != _digests(first):  # it might have learned from the images that are shown
        raise CapsellaError(
            f"{name}: a CNN beside a capsule network must take the same images and classes, and must be trained on the "
            f"same images as {first.folder}, so that the images on the page are new to both; train it with the same "
            "data options"
        )
    return own, (name, cnn)


def _digests(run: Run) -> dict[str, str]:
    """Return digests of the images that the run was trained and validated on."""
    return RunFolder(run.folder).images() or load_splits(run).digests()


def capsules_of(run: Run) -> CapsuleClassifier:
    """Return the run's network; raise `CapsellaError` if it is a CNN."""
    if not isinstance(run.model, CapsuleClassifier):
        raise CapsellaError(
            f"{run.folder}: {run.model.name} is a CNN and has no capsules. Also name a run with capsules for the same "
            "images, or draw what a CNN sees: capsella explore RUN --data IMAGES --out FOLDER"
        )
    return run.model
