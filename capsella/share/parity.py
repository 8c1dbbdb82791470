"""Whether the page draws what PyTorch draws: its own modules are run in Node on the finished file."""

import json
import math
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from capsella.errors import CapsellaError, pluralize
from capsella.models import CapsuleClassifier
from capsella.share.document import PAGE
from capsella.share.drawing import drawer_of
from capsella.share.looked import draw
from capsella.share.pool import Pool
from capsella.share.turned import turned

TOLERANCE = 0.004
"""Of a pixel in [0, 1], about one of 256 greys: more must not differ; the same of capsules, in parts of the largest."""
FEW = 5
"""Images whose drawings by ONNX Runtime are compared: one of 224×224 takes about a second."""
_SECONDS = 300


@dataclass(frozen=True)
class Compared:
    """The page beside PyTorch.

    pictures: how many were compared. difference: the largest of any pixel in [0, 1]. looks: images that the network in
    the page looked at. numbers: the largest difference of an activation, or of a pose in parts of its largest number.
    """

    pictures: int
    difference: float
    looks: int = 0
    numbers: float = 0.0

    def __str__(self) -> str:
        pictures = (
            f"{self.pictures} pictures computed by the page differ from PyTorch's by at most {self.difference:.2g} "
            f"(allowed: {TOLERANCE:g}; a grey level of 256 is {1 / 255:.2g})"
        )
        if not self.looks:
            return pictures
        return f"{pictures}, its capsules of {pluralize(self.looks, 'image')} by at most {self.numbers:.2g}"


def find_node() -> str | None:
    """The program that runs the page's modules outside of a browser, or None."""
    return shutil.which("node")


def compare_page(
    page: Path, models: list[CapsuleClassifier], chosen: list[Pool], most: list[float], network: bool = False
) -> Compared:
    """Draw with the page's decoder, and change images as it does; compare each picture with PyTorch's.

    Args:
        page: the finished file.
        models, chosen, most: of each run on it, its images, and how far its dials go.
        network: the page holds the networks, and what they make of images is compared as well.

    Raises:
        CapsellaError: a picture differs by more than `TOLERANCE`, or Node cannot run the page.
    """
    requests: list[dict[str, Any]] = []
    expected: list[Float[np.ndarray, "c h w"]] = []
    for number, (model, pool, dial) in enumerate(zip(models, chosen, most, strict=True)):
        looks = _looks(pool) if network else []
        for request, numbers in [*_drawings(model, pool, dial), *_changes(pool), *looks]:
            requests.append({"run": number, **request})
            expected.append(numbers)
    got = _run(page, requests)
    of_pictures, of_looks = list[float](), list[float]()
    for request, ours, theirs in zip(requests, expected, got, strict=True):
        if ours.size != theirs.size or not np.isfinite(theirs).all():
            raise CapsellaError(f"the page computes no picture of {ours.shape} for {request}")
        kept = of_looks if "look" in request else of_pictures
        kept.append(float(np.abs(ours.ravel() - theirs).max()))
    compared = Compared(len(of_pictures), max(of_pictures), len(of_looks), max(of_looks, default=0.0))
    if max(compared.difference, compared.numbers) > TOLERANCE:
        raise CapsellaError(f"the page differs from PyTorch: {compared}")
    return compared


def _looks(pool: Pool) -> list[tuple[dict[str, Any], np.ndarray]]:
    """Activations of each image, and poses in parts of the largest number of any."""
    scale = max(1e-12, float(pool.poses.abs().max()))
    both = torch.cat([pool.activations, pool.poses.flatten(1) / scale], 1).numpy()
    return [({"look": image, "scale": scale}, both[image]) for image in range(len(both))]


def _drawings(model: CapsuleClassifier, pool: Pool, dial: float) -> list[tuple[dict[str, Any], np.ndarray]]:
    """Predicted capsules as found, and with all dials turned at random; of few images where it takes long."""
    drawer = drawer_of(model)
    if drawer == "nobody":
        return []
    pool = pool if drawer == "matrices" else pool.take(list(range(min(FEW, len(pool.images)))))
    random, targets = np.random.default_rng(0), pool.taken[:, 0]
    cases = []
    for scale in (0.0, dial):
        offsets = torch.from_numpy(random.uniform(-scale, scale, pool.poses.shape[::2])).float()  # [n d]
        drawn = draw(model, targets, pool.poses[torch.arange(len(targets)), targets] + offsets).numpy()
        for image, target in enumerate(targets.tolist()):
            request = {"draw": image, "target": target, "offsets": offsets[image].tolist()}
            cases.append((request, drawn[image]))
    return cases


def _changes(pool: Pool) -> list[tuple[dict[str, Any], np.ndarray]]:
    """The first image, changed in five ways."""
    image = pool.images[:1].float() / 255
    shift = float(math.ceil(image.shape[3] / 5))
    ways = [("turn", 40.0), ("turn", -10.0), ("shift", shift), ("scale", 60.0), ("scale", 140.0)]
    return [
        ({"change": 0, "name": name, "amount": amount}, turned(image, name, amount)[0].numpy()) for name, amount in ways
    ]


def _run(page: Path, requests: list[dict[str, Any]]) -> list[Float[np.ndarray, " n"]]:
    node = find_node()
    if node is None:
        raise CapsellaError("the page cannot be compared with PyTorch: Node is not installed")
    try:
        done = subprocess.run(
            [node, str(PAGE / "check.mjs"), str(page)],
            input=json.dumps(requests),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise CapsellaError(
            f"the page cannot be compared with PyTorch: Node took more than {_SECONDS} s for {len(requests)} images"
        ) from error
    if done.returncode != 0:
        raise CapsellaError(f"the page cannot be compared with PyTorch, Node says: {done.stderr.strip()[-500:]}")
    return [np.array(one, dtype=np.float32) for one in json.loads(done.stdout)]
