"""From trained runs to one page: chosen, packed, compared with PyTorch, and written only if it passes and fits."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capsella.errors import ArgumentError, CapsellaError, check_minimum
from capsella.files import write_whole
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.share.arrays import Arrays
from capsella.share.beside import add_beside, check_alike, choose_features
from capsella.share.choice import choose_images
from capsella.share.content import run_content
from capsella.share.document import page_html
from capsella.share.drawing import drawer_of
from capsella.share.engine import add_engine, encoder_graph
from capsella.share.parity import Compared, compare_page, find_node
from capsella.share.pool import Pool, make_pool
from capsella.training import Run, RunFolder, load_splits, run_names

MOST_IMAGES = 20
MOST_MEGABYTES = 10.0
"""What most mail servers take; the demo's page has 3."""

_PARTS = {
    "weight": "decoder",
    "graph": "decoder",
    "encoder": "network",
    "wasm": "ONNX Runtime",
    "points": "votes",
    "changedPoses": "poses of changed images",
}
_OF_NETWORKS = ("weight", "graph", "encoder", "wasm")
"""Parts that no number of images changes."""


@dataclass(frozen=True)
class Shared:
    """A written page. images: of each run, by its name, their numbers in the test set. compared: None without Node."""

    path: Path
    megabytes: float
    images: dict[str, tuple[int, ...]]
    compared: Compared | None


def share_runs(
    runs: Sequence[Run],
    out: Path,
    *,
    images: int = MOST_IMAGES,
    megabytes: float = MOST_MEGABYTES,
    network: bool = False,
) -> Shared:
    """Write one HTML page of one or two runs, with some of their test images inside.

    Of two, one may be a CNN's: its features stand beside the pose where the input is changed. Node runs the page's own
    code beside PyTorch before anything is written. Without Node it is not compared, and the page says so.

    Args:
        runs: of capsule networks, or of one and a CNN.
        out: the file, which is replaced only by a page that passes.
        images: test images of each run on the page, at most.
        megabytes: 10⁶ bytes that the file may have.
        network: put the networks in as well, so that readers can draw or drop images of their own.

    Raises:
        ValueError: no run, more than two, or one twice; no images, no room; a network inside that draws random numbers.
        CapsellaError: a CNN alone, or one for other images; a page that is too large or differs from PyTorch; a network
            inside whose images no page can read.
    """
    _check_options(runs, images, megabytes)
    with_capsules, cnns = parted(dict(zip(run_names([run.folder for run in runs]), runs, strict=True)))
    named = {name: capsules_of(run) for name, run in with_capsules.items()}
    every = [make_pool(named[name], load_splits(run, skip_broken=True).test) for name, run in with_capsules.items()]
    arrays, node = Arrays(), find_node() is not None
    facts, pools = page_content(named, every, images, arrays, network=network)
    _add_cnn(cnns, pools[0], facts, arrays)
    html = page_html(page_title(named), {**facts, "arrays": arrays.table, "compared": node}, arrays.packed())
    _check_size(html, megabytes, arrays)

    def compare(page: Path) -> Compared:
        return compare_page(page, [*named.values()], pools, [_reach(one) for one in facts["runs"]], network)

    compared, inside = _write(out, html, compare if node else None), [pool.numbers for pool in pools]
    return Shared(out, out.stat().st_size / 1e6, dict(zip(named, inside, strict=True)), compared)


def _write(out: Path, html: str, compare: Callable[[Path], Compared] | None) -> Compared | None:
    """The page takes its place if the comparison, where there is one, lets it pass."""
    compared: list[Compared] = []

    def write(temporary: Path) -> None:
        temporary.write_text(html, encoding="utf-8")
        if compare is not None:
            compared.append(compare(temporary))

    write_whole(out, write)
    return next(iter(compared), None)


def _check_options(runs: Sequence[Run], images: int, megabytes: float) -> None:
    """Of `share_runs`."""
    check_minimum(1, images=images)
    if not megabytes > 0:
        raise ArgumentError("megabytes", "be above 0", megabytes)
    if not 1 <= len(runs) <= 2:
        raise ArgumentError("runs", "be one, or two to compare", len(runs))


def _add_cnn(cnns: Mapping[str, ImageClassifier], pool: Pool, facts: Mapping[str, Any], arrays: Arrays) -> None:
    """What the CNN beside the first run makes of its images, if there is one."""
    for name, cnn in cnns.items():
        beside = choose_features(name, cnn, pool.images)
        add_beside(beside, pool.images.float() / 255, arrays, "0")
        facts["runs"][0]["beside"] = beside.facts


def _reach(facts: Mapping[str, Any]) -> float:
    """How far a run's dials go."""
    most: float = facts["dials"]["most"]
    return most


def parted(runs: Mapping[str, Run]) -> tuple[dict[str, Run], dict[str, ImageClassifier]]:
    """Of runs by their names those with capsules, and the CNN beside the only one, if there is one.

    Raises:
        CapsellaError: a CNN without capsules or beside two runs, two CNNs, or one for or of other images.
    """
    own = {name: run for name, run in runs.items() if isinstance(run.model, CapsuleClassifier)}
    cnns = {name: run.model for name, run in runs.items() if name not in own}
    if not own:
        capsules_of(next(iter(runs.values())))
    if cnns and len(runs) > 2:
        raise CapsellaError(f"a CNN stands beside one capsule network: give these two runs, got {', '.join(runs)}")
    for name, cnn in cnns.items():
        first = next(iter(own.values()))
        check_alike(cnn, capsules_of(first))
        _check_split(name, runs[name], first)
    return own, cnns


def _check_split(name: str, cnn: Run, first: Run) -> None:
    """The CNN learned from the same images: else it might have seen those that are shown.

    Raises:
        CapsellaError: it did not.
    """
    if _digests(cnn) != _digests(first):
        raise CapsellaError(
            f"{name}: a CNN beside a capsule network must be trained on the same images as {first.folder}, so that the "
            "images on the page are new to both; train it with the same data options"
        )


def _digests(run: Run) -> dict[str, str]:
    """Of the images that it was trained and validated on; of a run from before they were kept, as they are now."""
    return RunFolder(run.folder).images() or load_splits(run, skip_broken=True).digests()


def page_content(
    named: Mapping[str, CapsuleClassifier],
    pools: Sequence[Pool],
    most: int,
    arrays: Arrays,
    *,
    live: bool = False,
    network: bool = False,
) -> tuple[dict[str, Any], list[Pool]]:
    """Facts about runs, and the `most` images chosen of each pool; the arrays go to `arrays`.

    Runs on the same images show the same ones, so that a comparison can follow what is chosen: then "alike" is true.
    live: as `run_content`. network: the page holds the networks, and shows them images of a reader's own.
    """
    alike = all(pools[0].is_like(pool) for pool in pools)
    places = [choose_images(pool, most) for pool in pools]
    chosen = [pool.take(places[0] if alike else own) for pool, own in zip(pools, places, strict=True)]
    rows = zip(named.items(), pools, chosen, strict=True)
    facts = [
        run_content(name, model, pool, some, arrays, str(number), live=live)
        for number, ((name, model), pool, some) in enumerate(rows)
    ]
    for number, model in enumerate(named.values()) if network else ():
        arrays.add(f"{number}/encoder", "u1", np.frombuffer(encoder_graph(model), np.uint8))
    engine = network or (not live and any(drawer_of(model) == "graph" for model in named.values()))
    if engine:
        add_engine(arrays)
    return {"runs": facts, "alike": alike, "engine": engine}, chosen


def page_title(names: Iterable[str]) -> str:
    """Of the browser's tab."""
    return f"{' and '.join(names)}: inside a capsule network"


def capsules_of(run: Run) -> CapsuleClassifier:
    """The run's network.

    Raises:
        CapsellaError: it is a CNN.
    """
    if not isinstance(run.model, CapsuleClassifier):
        raise CapsellaError(
            f"{run.folder}: {run.model.name} is a CNN and has no capsules. Name a run with capsules for the "
            "same images as well: its features then stand beside them. capsella explore draws what a CNN sees"
        )
    return run.model


def _check_size(html: str, megabytes: float, arrays: Arrays) -> None:
    """The page is no larger than allowed."""
    size = len(html.encode()) / 1e6
    if size <= megabytes:
        return
    largest = sorted(arrays.sizes().items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{_PARTS.get(name, name)} {count / 1e6:.1f}" for name, count in largest if count >= 5e4)
    of_images = sum(count for name, count in arrays.sizes().items() if name not in _OF_NETWORKS) / 1e6
    fewer = ", or take fewer images with --images" if of_images > size - megabytes else ""
    smaller = ". A smaller decoder, as of --model.decoder-width 256 in training, has fewer weights"
    told = f"The largest parts, in MB: {parts}. " if parts else ""
    raise CapsellaError(
        f"the page would have {math.ceil(10 * size) / 10:.1f} MB, more than the {megabytes:g} of --megabytes. "
        f"{told}Allow it with --megabytes {math.ceil(size):d}{fewer}"
        f"{smaller if largest[0][0] == 'weight' else ''}"
    )
