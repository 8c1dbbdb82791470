"""Responses of the explorer's server: the page, and JSON for the requests of its script."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from capsella.errors import ArgumentError
from capsella.web.arrays import Arrays
from capsella.web.cnn import add_features
from capsella.web.images import EncodedImages, add_changes, add_images, add_routing, decode_poses, encode
from capsella.web.page import page_content, page_html, page_title
from capsella.web.served_run import ServedRun
from capsella.web.share import MAX_IMAGES
from capsella.web.uploads import MAX_BYTES, read_sketch, read_upload

MAX_DRAWINGS = 8  # per request: other requests must not wait long
MAX_POSE = 1e4  # maximum magnitude of a pose element; those of networks are far below


def explorer_page(served_runs: Sequence[ServedRun]) -> tuple[str, bytes]:
    """Return the HTML page about some runs, and its arrays, which its script requests as bytes for a faster start.

    Raises:
        ArgumentError: no runs, or two with the same name.
    """
    if not served_runs:
        raise ArgumentError("runs", "be at least one run", None)
    named = {served_run.name: served_run.model for served_run in served_runs}
    if len(named) < len(served_runs):
        raise ArgumentError("runs", "have names of their own", ", ".join(served_run.name for served_run in served_runs))
    arrays = Arrays()
    facts, _ = page_content(named, [served_run.seen for served_run in served_runs], MAX_IMAGES, arrays, live=True)
    for run, served_run in zip(facts["runs"], served_runs, strict=True):
        if served_run.cnn is not None:
            run["beside"] = served_run.cnn.facts
    tests = [_tests(served_run.seen) for served_run in served_runs]
    server = {"bytes": MAX_BYTES, "drawings": MAX_DRAWINGS, "tests": tests}
    everything = {**facts, "arrays": arrays.table, "server": server}
    return page_html(page_title(named), everything, ""), arrays.content()


def _tests(seen: EncodedImages) -> dict[str, Any]:
    """Return numbers, true classes and correctness of the test images, by which the page's reader can find them."""
    return {"numbers": list(seen.numbers), "truth": seen.labels.tolist(), "right": seen.correct.tolist()}


def answer_about(
    served_run: ServedRun, seen: EncodedImages, title: str | None = None, said: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the JSON of one image in the page's format.

    Args:
        served_run: the run.
        seen: the image, encoded by the run's network.
        title: its name, unless it is a test image.
        said: sentences on how it was changed.
    """
    arrays = Arrays()
    (facts,) = add_images(served_run.model, seen, arrays, "0")
    add_routing(served_run.model, seen, arrays, "0")
    return {"image": {**facts, "title": title, "said": list(said)}, **_packed(arrays)}


def _packed(arrays: Arrays) -> dict[str, Any]:
    return {"arrays": arrays.table, "data": arrays.packed()}


def answer_file(served_run: ServedRun, content: bytes, name: str) -> dict[str, Any]:
    """Return the JSON of an uploaded file; raises what `read_upload` raises."""
    image, said = read_upload(content, name, served_run.model)
    return answer_about(served_run, _unknown(served_run, image), name, said)


def answer_sketch(served_run: ServedRun, content: bytes) -> dict[str, Any]:
    """Return the JSON of a drawing made on the page; raises what `read_sketch` raises."""
    return answer_about(served_run, _unknown(served_run, read_sketch(content, served_run.model)), "Your drawing")


def _unknown(served_run: ServedRun, image: UInt8[Tensor, "c h w"]) -> EncodedImages:
    """Encode an image whose class is unknown."""
    labels = torch.zeros(1, 0, dtype=torch.long)
    return encode(served_run.model, image.unsqueeze(0), labels, (-1,), served_run.seen.test_size)


def answer_changes(served_run: ServedRun, pixels: bytes, predicted: int) -> dict[str, Any]:
    """Return activations and poses for changed versions of an image.

    Args:
        served_run: the run.
        pixels: the image, [c h w] of 0..255.
        predicted: index of the class whose pose is returned.

    Raises:
        ArgumentError: another number of pixels, or no such class.
    """
    model, shape = served_run.model, (1, served_run.model.channels, *served_run.model.image_size)
    count = shape[1] * shape[2] * shape[3]
    if len(pixels) != count:
        raise ArgumentError("pixels", f"be {count} bytes", len(pixels))
    _check_class(served_run, predicted)
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(shape).float() / 255
    arrays = Arrays()
    add_changes(model, images, torch.tensor([predicted]), arrays, "0")
    if served_run.cnn is not None:
        add_features(served_run.cnn, images, arrays, "0")
    return _packed(arrays)


def answer_drawings(served_run: ServedRun, asked: Any) -> dict[str, Any]:
    """Return reconstructions from poses of a class capsule. asked: {"target": class index, "poses": [n d]}.

    Raises:
        ArgumentError: a malformed request, no such class, too many poses, or poses of another size.
        CapsellaError: the network has no decoder.
    """
    if not isinstance(asked, dict) or set(asked) != {"target", "poses"}:
        raise ArgumentError("question", 'be {"target": …, "poses": […]}', type(asked).__name__)
    _check_class(served_run, asked["target"])
    poses = _poses(asked["poses"], served_run.seen.poses.shape[2])
    drawn = decode_poses(served_run.model, torch.full((len(poses),), asked["target"]), poses)
    arrays = Arrays()
    arrays.add("0/drawings", "u1", (drawn.clamp(0, 1) * 255).round().numpy())
    return _packed(arrays)


def _check_class(served_run: ServedRun, target: Any) -> None:
    last = len(served_run.model.classes) - 1
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
