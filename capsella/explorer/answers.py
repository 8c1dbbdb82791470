"""What the server says: the page, and JSON for what its script asks."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from capsella.errors import ArgumentError
from capsella.explorer.subject import Subject
from capsella.explorer.uploads import MOST_BYTES, read_sketch, read_upload
from capsella.share.arrays import Arrays
from capsella.share.beside import add_beside
from capsella.share.document import page_html
from capsella.share.looked import add_changes, add_images, add_routing, draw
from capsella.share.pool import Pool, look
from capsella.share.shared import MOST_IMAGES, page_content, page_title

MOST_DRAWINGS = 8
"""Of one question: another's must not wait long."""
LARGEST_POSE = 1e4
"""Of a number in a pose; what capsules hold is far below."""


def explorer_page(subjects: Sequence[Subject]) -> tuple[str, bytes]:
    """The page about some runs: that of `capsella share`, and what its script must know to ask the server.

    Returns:
        The page, and its arrays, which its script asks for: bytes as they are open sooner than text in a page.

    Raises:
        ValueError: no subject, or two of one name.
    """
    if not subjects:
        raise ArgumentError("subjects", "be at least one run", None)
    named = {subject.name: subject.model for subject in subjects}
    if len(named) < len(subjects):
        raise ArgumentError("subjects", "have names of their own", ", ".join(one.name for one in subjects))
    arrays = Arrays()
    facts, _ = page_content(named, [subject.pool for subject in subjects], MOST_IMAGES, arrays, live=True)
    for run, subject in zip(facts["runs"], subjects, strict=True):
        if subject.beside is not None:
            run["beside"] = subject.beside.facts
    server = {"bytes": MOST_BYTES, "drawings": MOST_DRAWINGS, "tests": [_tests(one.pool) for one in subjects]}
    everything = {**facts, "arrays": arrays.table, "compared": False, "server": server}
    return page_html(page_title(named), everything, ""), arrays.content()


def _tests(pool: Pool) -> dict[str, Any]:
    """By which test images can be found: what they show, and whether the network is right."""
    return {"numbers": list(pool.numbers), "truth": pool.labels.tolist(), "right": pool.right.tolist()}


def answer_about(subject: Subject, seen: Pool, title: str | None = None, said: Sequence[str] = ()) -> dict[str, Any]:
    """One image as the page holds it. title: its name, if it is no test image. said: what was done to it."""
    arrays = Arrays()
    (facts,) = add_images(subject.model, seen, arrays, "0")
    add_routing(subject.model, seen, arrays, "0")
    return {"image": {**facts, "title": title, "said": list(said)}, **_packed(arrays)}


def _packed(arrays: Arrays) -> dict[str, Any]:
    return {"arrays": arrays.table, "data": arrays.packed()}


def answer_file(subject: Subject, content: bytes, name: str) -> dict[str, Any]:
    """An uploaded file, as `read_upload` reads it; raises as that."""
    image, said = read_upload(content, name, subject.model)
    return answer_about(subject, _unknown(subject, image), name, said)


def answer_sketch(subject: Subject, content: bytes) -> dict[str, Any]:
    """What was drawn on the page, as `read_sketch` reads it; raises as that."""
    return answer_about(subject, _unknown(subject, read_sketch(content, subject.model)), "Your drawing")


def _unknown(subject: Subject, image: UInt8[Tensor, "c h w"]) -> Pool:
    """An image of which nobody knows what it shows."""
    return look(subject.model, image.unsqueeze(0), torch.zeros(1, 0, dtype=torch.long), (-1,), subject.pool.of)


def answer_changes(subject: Subject, pixels: bytes, predicted: int) -> dict[str, Any]:
    """What the network makes of an image turned, shifted and scaled. pixels: [c h w] of 0..255, as the page holds them.

    Raises:
        ValueError: pixels of another number, or no such class.
    """
    model, shape = subject.model, (1, subject.model.channels, *subject.model.image_size)
    count = shape[1] * shape[2] * shape[3]
    if len(pixels) != count:
        raise ArgumentError("pixels", f"be {count} bytes", len(pixels))
    _check_class(subject, predicted)
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(shape).float() / 255
    arrays = Arrays()
    add_changes(model, images, torch.tensor([predicted]), arrays, "0")
    if subject.beside is not None:
        add_beside(subject.beside, images, arrays, "0")
    return _packed(arrays)


def answer_drawings(subject: Subject, asked: Any) -> dict[str, Any]:
    """What a class capsule draws. asked: {"target": class, "poses": [n d]}.

    Raises:
        ValueError: another question, no such class, too many poses, or such as are no poses of this network.
        CapsellaError: the network has no decoder.
    """
    if not isinstance(asked, dict) or set(asked) != {"target", "poses"}:
        raise ValueError('the question must be {"target": …, "poses": […]}')
    _check_class(subject, asked["target"])
    poses = _poses(asked["poses"], subject.pool.poses.shape[2])
    drawn = draw(subject.model, torch.full((len(poses),), asked["target"]), poses)
    arrays = Arrays()
    arrays.add("0/drawings", "u1", (drawn.clamp(0, 1) * 255).round().numpy())
    return _packed(arrays)


def _check_class(subject: Subject, target: Any) -> None:
    last = len(subject.model.classes) - 1
    if not isinstance(target, int) or isinstance(target, bool) or not 0 <= target <= last:
        raise ArgumentError("class", f"be from 0 to {last}", target)


def _poses(given: Any, d: int) -> Float[Tensor, "n d"]:
    """Poses out of JSON."""
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_DRAWINGS:
        raise ValueError(f"poses: must be a list of 1 to {MOST_DRAWINGS}")
    for pose in given:
        numbers = isinstance(pose, list) and len(pose) == d and all(type(one) in (int, float) for one in pose)
        if not numbers or not all(abs(one) <= LARGEST_POSE for one in pose):
            raise ValueError(f"poses: must each have {d} numbers, none beyond ±{LARGEST_POSE:g}")
    return torch.tensor(given, dtype=torch.float32)
