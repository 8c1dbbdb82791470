"""Responses of the explorer's server: the page, and JSON for the requests of its script."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from capsella.errors import ArgumentError
from capsella.web.arrays import Arrays
from capsella.web.cnn import add_features
from capsella.web.images import SeenImages, add_changes, add_images, add_routing, decode_poses, see
from capsella.web.page import page_content, page_html, page_title
from capsella.web.share import MAX_IMAGES
from capsella.web.subject import Subject
from capsella.web.uploads import MAX_BYTES, read_sketch, read_upload

MAX_DRAWINGS = 8  # per request: other requests must not wait long
MAX_POSE = 1e4  # maximum magnitude of a pose element; those of networks are far below


def explorer_page(subjects: Sequence[Subject]) -> tuple[str, bytes]:
    """Return the HTML page about some runs, and its arrays, which its script requests as bytes for a faster start.

    Raises:
        ArgumentError: no runs, or two with the same name.
    """
    if not subjects:
        raise ArgumentError("subjects", "be at least one run", None)
    named = {subject.name: subject.model for subject in subjects}
    if len(named) < len(subjects):
        raise ArgumentError("subjects", "have names of their own", ", ".join(subject.name for subject in subjects))
    arrays = Arrays()
    facts, _ = page_content(named, [subject.seen for subject in subjects], MAX_IMAGES, arrays, live=True)
    for run, subject in zip(facts["runs"], subjects, strict=True):
        if subject.cnn is not None:
            run["beside"] = subject.cnn.facts
    server = {"bytes": MAX_BYTES, "drawings": MAX_DRAWINGS, "tests": [_tests(subject.seen) for subject in subjects]}
    everything = {**facts, "arrays": arrays.table, "server": server}
    return page_html(page_title(named), everything, ""), arrays.content()


def _tests(seen: SeenImages) -> dict[str, Any]:
    """Return numbers, true classes and correctness of the test images, by which the page's reader can find them."""
    return {"numbers": list(seen.numbers), "truth": seen.labels.tolist(), "right": seen.correct.tolist()}


def answer_about(
    subject: Subject, seen: SeenImages, title: str | None = None, said: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the JSON of one image in the page's format.

    Args:
        subject: the run.
        seen: the image, encoded by the run's network.
        title: its name, unless it is a test image.
        said: sentences on how it was changed.
    """
    arrays = Arrays()
    (facts,) = add_images(subject.model, seen, arrays, "0")
    add_routing(subject.model, seen, arrays, "0")
    return {"image": {**facts, "title": title, "said": list(said)}, **_packed(arrays)}


def _packed(arrays: Arrays) -> dict[str, Any]:
    return {"arrays": arrays.table, "data": arrays.packed()}


def answer_file(subject: Subject, content: bytes, name: str) -> dict[str, Any]:
    """Return the JSON of an uploaded file; raises what `read_upload` raises."""
    image, said = read_upload(content, name, subject.model)
    return answer_about(subject, _unknown(subject, image), name, said)


def answer_sketch(subject: Subject, content: bytes) -> dict[str, Any]:
    """Return the JSON of a drawing made on the page; raises what `read_sketch` raises."""
    return answer_about(subject, _unknown(subject, read_sketch(content, subject.model)), "Your drawing")


def _unknown(subject: Subject, image: UInt8[Tensor, "c h w"]) -> SeenImages:
    """Encode an image whose class is unknown."""
    labels = torch.zeros(1, 0, dtype=torch.long)
    return see(subject.model, image.unsqueeze(0), labels, (-1,), subject.seen.test_size)


def answer_changes(subject: Subject, pixels: bytes, predicted: int) -> dict[str, Any]:
    """Return activations and poses for changed versions of an image.

    Args:
        subject: the run.
        pixels: the image, [c h w] of 0..255.
        predicted: index of the class whose pose is returned.

    Raises:
        ArgumentError: another number of pixels, or no such class.
    """
    model, shape = subject.model, (1, subject.model.channels, *subject.model.image_size)
    count = shape[1] * shape[2] * shape[3]
    if len(pixels) != count:
        raise ArgumentError("pixels", f"be {count} bytes", len(pixels))
    _check_class(subject, predicted)
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(shape).float() / 255
    arrays = Arrays()
    add_changes(model, images, torch.tensor([predicted]), arrays, "0")
    if subject.cnn is not None:
        add_features(subject.cnn, images, arrays, "0")
    return _packed(arrays)


def answer_drawings(subject: Subject, asked: Any) -> dict[str, Any]:
    """Return reconstructions from poses of a class capsule. asked: {"target": class index, "poses": [n d]}.

    Raises:
        ArgumentError: a malformed request, no such class, too many poses, or poses of another size.
        CapsellaError: the network has no decoder.
    """
    if not isinstance(asked, dict) or set(asked) != {"target", "poses"}:
        raise ArgumentError("question", 'be {"target": …, "poses": […]}', type(asked).__name__)
    _check_class(subject, asked["target"])
    poses = _poses(asked["poses"], subject.seen.poses.shape[2])
    drawn = decode_poses(subject.model, torch.full((len(poses),), asked["target"]), poses)
    arrays = Arrays()
    arrays.add("0/drawings", "u1", (drawn.clamp(0, 1) * 255).round().numpy())
    return _packed(arrays)


def _check_class(subject: Subject, target: Any) -> None:
    last = len(subject.model.classes) - 1
    if not isinstance(target, int) or isinstance(target, bool) or not 0 <= target <= last:
        raise ArgumentError("class", f"be from 0 to {last}", target)


def _poses(asked: Any, d: int) -> Float[Tensor, "n d"]:
    """Return the poses of a request after checking them."""
    if not isinstance(asked, list) or not 1 <= len(asked) <= MAX_DRAWINGS:
        raise ArgumentError("poses", f"be a list of 1 to {MAX_DRAWINGS}", type(asked).__name__)
    for pose in asked:
        is_pose = isinstance(pose, list) and len(pose) == d and all(type(number) in (int, float) for number in pose)
        if not is_pose or not all(abs(number) <= MAX_POSE for number in pose):
            raise ArgumentError("poses", f"each have {d} numbers, none beyond ±{MAX_POSE:g}", pose)
    return torch.tensor(asked, dtype=torch.float32)
