"""What one browser tab looks at, and how dials change it: plain values in, plain values out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.models import ImageClassifier
from capsella.models.inference import check_decoder, inference
from capsella.types import Capsules

DIALS = 16  # sliders on a page: all of a Sabour or matrix capsule, a sixth of the thesis's 96


@dataclass(frozen=True, eq=False)
class View:
    """An image, what the network made of it, and how far each dial is turned.

    image: [c h w] in [0, 1]. title: what it is called. truth: its classes, where known.
    activations: [classes]. poses: [classes d] of the class capsules as found; a CNN has none, d = 0.
    offsets: [classes d], what the dials add. target: the class whose capsule has the dials. page: of its dials.
    """

    image: Float[Tensor, "c h w"]
    title: str
    truth: tuple[int, ...]
    activations: Float[Tensor, "classes"]
    poses: Float[Tensor, "classes d"]
    offsets: Float[Tensor, "classes d"]
    target: int
    page: int = 0

    @property
    def dials(self) -> range:
        """Indices of the pose elements on the page."""
        return range(self.page * DIALS, min((self.page + 1) * DIALS, self.poses.shape[1]))

    @property
    def pages(self) -> int:
        """How many pages of dials a capsule has."""
        return max(1, -(-self.poses.shape[1] // DIALS))


def look_at(model: ImageClassifier, image: Float[Tensor, "c h w"], title: str, truth: tuple[int, ...] = ()) -> View:
    """Let the network see an image in [0, 1]; the strongest class gets the dials, all at zero.

    Raises:
        ValueError: an image of another shape than the model's.
    """
    model.check_images(image.unsqueeze(0))
    with inference(model) as device:
        output = model(image.unsqueeze(0).to(device))
    activations = output.activations[0].float().cpu().clone()
    poses = torch.zeros(len(model.classes), 0)
    if output.capsules is not None:
        poses = output.capsules.poses[0, 0, 0].float().cpu().clone()
    target = int(activations.argmax())
    return View(image, title, truth, activations, poses, torch.zeros_like(poses), target)


def turn_to(view: View, target: int, page: int = 0) -> View:
    """The same, with the dials of another class's capsule, or another page of them.

    Raises:
        ValueError: no such class or page.
    """
    if not 0 <= target < len(view.activations):
        raise ValueError(f"target: must be a class index in 0…{len(view.activations) - 1}, got {target}")
    if not 0 <= page < view.pages:
        raise ValueError(f"page: must be in 0…{view.pages - 1}, got {page}")
    return replace(view, target=target, page=page)


def move(view: View, dial: int, value: float) -> View:
    """Turn one dial, an index into the pose of the chosen capsule, to `value`.

    Raises:
        ValueError: no such dial, or a value that is not finite.
    """
    if not 0 <= dial < view.poses.shape[1]:
        raise ValueError(f"dial: must be in 0…{view.poses.shape[1] - 1}, got {dial}")
    if not math.isfinite(value):
        raise ValueError(f"value: must be finite, got {value}")
    offsets = view.offsets.clone()
    offsets[view.target, dial] = value
    return replace(view, offsets=offsets)


def reset(view: View, everything: bool = False) -> View:
    """All dials of the chosen capsule back to zero, or those of every capsule."""
    offsets = torch.zeros_like(view.offsets) if everything else view.offsets.clone()
    offsets[view.target] = 0
    return replace(view, offsets=offsets)


def drawn_classes(view: View, count: int) -> list[int]:
    """The classes whose capsules are drawn: the one with the dials, then the strongest others, `count` in all.

    Of the two strongest the order stays as it is whichever of them has the dials, so that pictures keep their places.
    """
    strongest = view.activations.topk(count).indices.tolist()
    return strongest if view.target in strongest else [view.target, *strongest[: count - 1]]


def reconstructions(model: ImageClassifier, view: View, classes: Sequence[int]) -> Float[Tensor, "k c h w"]:
    """What the decoder draws from the capsule of each of `classes`, as the dials have turned it.

    Raises:
        ValueError: a model without a decoder.
    """
    return decode_poses(model, view, [(target, _turned(view, target)) for target in classes])


def _turned(view: View, target: int) -> Float[Tensor, "d"]:
    """The pose of a class capsule with what its dials add."""
    return view.poses[target] + view.offsets[target]


def sweep(model: ImageClassifier, view: View, dial: int, offsets: Sequence[float]) -> Float[Tensor, "k c h w"]:
    """What the chosen capsule draws as one of its dials goes through `offsets`, the others as they are.

    Raises:
        ValueError: a model without a decoder, no such dial, no offsets.
    """
    if not offsets:
        raise ValueError("offsets: must hold at least one number, got none")
    moved = [_turned(move(view, dial, offset), view.target) for offset in offsets]
    return decode_poses(model, view, [(view.target, pose) for pose in moved])


def decode_poses(
    model: ImageClassifier, view: View, poses: Sequence[tuple[int, Float[Tensor, "d"]]]
) -> Float[Tensor, "k c h w"]:
    """One image from each (class, pose of its capsule)."""
    check_decoder(model, "reconstructions")
    targets = torch.tensor([target for target, _ in poses])
    capsules = view.poses.repeat(len(poses), 1, 1)  # [k classes d]
    capsules[torch.arange(len(poses)), targets] = torch.stack([pose for _, pose in poses])
    activations = view.activations.expand(len(poses), -1)
    with inference(model) as device:
        grid = Capsules(capsules[:, None, None].to(device), activations[:, None, None].to(device))
        return model.decode(grid, targets.to(device)).float().cpu().clone()
