"""From trained runs to one page: chosen, packed, compared with PyTorch, and written only if it passes and fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsella.data import load_data
from capsella.data.split.sets import single_images
from capsella.errors import CapsellaError, at_least
from capsella.files import write_whole
from capsella.models import CapsuleClassifier
from capsella.share.arrays import Arrays
from capsella.share.content import Pool, make_pool, run_content
from capsella.share.document import page_html
from capsella.share.parity import Compared, compare_page, find_node
from capsella.training import Run

MOST_IMAGES = 20
MOST_MEGABYTES = 10.0
"""What most mail servers take; the demo's page has 3."""

_PARTS = {"weight": "decoder", "points": "votes", "changedPoses": "poses of changed images"}


@dataclass(frozen=True)
class Shared:
    """A written page. images: of each run, by its name, their numbers in the test set. compared: None without Node."""

    path: Path
    megabytes: float
    images: dict[str, tuple[int, ...]]
    compared: Compared | None


def share_runs(
    runs: Sequence[Run], out: Path, *, images: int = MOST_IMAGES, megabytes: float = MOST_MEGABYTES
) -> Shared:
    """Write one HTML page of one or two runs, with some of their test images inside.

    The page's own code is run in Node beside PyTorch before anything is written. Without Node it is not compared, and
    the page says so.

    Args:
        runs: of capsule networks.
        out: the file, which is replaced only by a page that passes.
        images: test images of each run on the page, at most.
        megabytes: 10⁶ bytes that the file may have.

    Raises:
        ValueError: no run or more than two, no images, no room.
        CapsellaError: a CNN, a run on pairs, a page that is too large or differs from PyTorch.
    """
    if not 1 <= len(runs) <= 2:
        raise ValueError(f"runs: must be one, or two to compare, got {len(runs)}")
    at_least(1, images=images)
    if not megabytes > 0:
        raise ValueError(f"megabytes: must be above 0, got {megabytes}")
    models = [_capsules(run) for run in runs]
    arrays, node = Arrays(), find_node() is not None
    facts, pools = _contents(runs, models, images, arrays)
    names = [str(one["name"]) for one in facts]
    everything = {"runs": facts, "arrays": arrays.table, "compared": node}
    html = page_html(f"{' and '.join(names)}: inside a capsule network", everything, arrays.packed())
    _check_size(html, megabytes, arrays)
    compared: list[Compared] = []

    def write(temporary: Path) -> None:
        temporary.write_text(html, encoding="utf-8")
        if node:
            compared.append(compare_page(temporary, models, pools, [one["dials"]["most"] for one in facts]))

    write_whole(out, write)
    inside = {name: pool.numbers for name, pool in zip(names, pools, strict=True)}
    return Shared(out, out.stat().st_size / 1e6, inside, compared[0] if compared else None)


def _contents(
    runs: Sequence[Run], models: Sequence[CapsuleClassifier], most: int, arrays: Arrays
) -> tuple[list[dict[str, Any]], list[Pool]]:
    """Facts about each run, and the images chosen of it; the arrays go to `arrays`."""
    facts, pools = [], []
    for number, (run, model) in enumerate(zip(runs, models, strict=True)):
        test = single_images(load_data(run.recipe.data).test, "shared pages")
        name = run.folder.resolve().name
        content, chosen = run_content(name, model, make_pool(model, test), most, arrays, str(number))
        facts.append(content)
        pools.append(chosen)
    return facts, pools


def _capsules(run: Run) -> CapsuleClassifier:
    if not isinstance(run.model, CapsuleClassifier):
        raise CapsellaError(
            f"{run.folder}: {run.model.name} is a CNN and has no capsules; capsella explain draws what it sees"
        )
    return run.model


def _check_size(html: str, megabytes: float, arrays: Arrays) -> None:
    """The page is no larger than allowed."""
    size = len(html.encode()) / 1e6
    if size <= megabytes:
        return
    largest = sorted(arrays.sizes().items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{_PARTS.get(name, name)} {count / 1e6:.1f}" for name, count in largest if count >= 5e4)
    raise CapsellaError(
        f"the page would have {size:.1f} MB, more than the {megabytes:g} of --megabytes. "
        f"The largest parts, in MB: {parts}. Allow more with --megabytes, or take fewer images with --images; "
        "the decoder's weights stay as they are"
    )
