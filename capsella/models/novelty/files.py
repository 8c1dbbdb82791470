"""novelty.safetensors: what is familiar to a model, beside the weights that it was fitted to."""

from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor, nn

from capsella.errors import CapsellaError, errors_of, warn_once
from capsella.files import write_whole
from capsella.models.fitted import if_current, weights_to_write
from capsella.models.novelty.fitted import Familiar, Novelty
from capsella.models.novelty.gaussians import ClassGaussian

FILE = "novelty.safetensors"
FORM = "1"
"""Of the scores: one that is measured in another way needs another number."""
_MOST_BYTES = 1_000_000_000  # some ten thousand features


def write_novelty(model: nn.Module, novelty: Novelty | None, folder: Path) -> None:
    """Write novelty.safetensors; remove an older one where `novelty` is None, or of other weights (with a warning)."""
    path = folder / FILE
    weights = weights_to_write(model, novelty, path)
    if novelty is None or weights is None:
        return
    tensors = {"largest": novelty.largest}
    tensors |= {f"familiar.{name}": one.values for name, one in novelty.familiar.items()}
    for name, one in novelty.gaussians.items():
        tensors |= {f"means.{name}": one.means, f"whitening.{name}": one.whitening}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"weights": weights, "form": FORM}
    write_whole(path, lambda part: part.write_bytes(safetensors.torch.save(tensors, metadata)))


def read_novelty(model: nn.Module, folder: Path) -> Novelty | None:
    """What novelty.safetensors holds; None where there is none, or with a warning where it is of other weights.

    Raises:
        CapsellaError: damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    with errors_of(f"{path} is damaged or not written by capsella; delete it, and `capsella calibrate` writes it anew"):
        if path.stat().st_size > _MOST_BYTES:
            raise CapsellaError(f"it has more than {_MOST_BYTES:,} bytes")
        novelty, form = _read(path)
    if form != FORM:
        warn_once(str(path), f"{path} is of another version, so it is not used; capsella calibrate fits it anew")
        return None
    return if_current(model, novelty, path)


def _read(path: Path) -> tuple[Novelty, str | None]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 (no dict)
    except (safetensors.SafetensorError, OSError) as error:
        raise CapsellaError(str(error)) from error
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        parts.setdefault(kind, {})[name] = tensor
    try:
        whitening = parts.get("whitening", {})
        gaussians = {name: ClassGaussian(means, whitening[name]) for name, means in parts.get("means", {}).items()}
        familiar = {name: Familiar(values) for name, values in parts["familiar"].items()}
        return Novelty(gaussians, familiar, parts["largest"][""], metadata.get("weights")), metadata.get("form")
    except KeyError as error:
        raise CapsellaError(f"it lacks {error}") from error
