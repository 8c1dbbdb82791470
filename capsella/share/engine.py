"""A decoder of convolutions, or the network, in a page: a graph with its weights, and ONNX Runtime's WebAssembly."""

import lzma
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import CapsellaError, check_installed
from capsella.export.graph import refuse_random, with_backend
from capsella.export.onnx_files import converted
from capsella.models import CapsuleClassifier
from capsella.models.inference import evaluation_mode
from capsella.share.arrays import Arrays
from capsella.share.document import joined_modules

FOLDER = Path(__file__).parent / "onnxruntime-web"
"""The library as its makers built it, for whoever has no npm; `tools/page_libraries.py` fetches it."""
_SMALL = 1024  # numbers: such tables stay as they are


class _Drawing(nn.Module):
    """Poses of all classes, all but one of them masked → the drawing. Shapes: [1 1 1 classes d] → [1 c h w]."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, poses: Float[Tensor, "1 1 1 classes d"]) -> Tensor:
        drawing: Tensor = self.decoder(poses)
        return drawing


def decoder_graph(model: CapsuleClassifier, pose: int) -> bytes:
    """The decoder as an ONNX file, poses [1 1 1 classes d] → drawing [1 c h w], its weights of 16 binary digits.

    Args:
        model: with a decoder of any kind.
        pose: d, the numbers of a class capsule.

    Raises:
        ValueError: the model has no decoder.
        CapsellaError: the extra `export` is not installed.
    """
    if model.decoder is None:
        raise ValueError(f"model: must have a decoder, got {model.name} without one")
    check_installed("a page", "export", "onnx", "onnxscript")
    poses = torch.zeros(1, 1, 1, len(model.classes), pose, device=next(model.parameters()).device)
    with evaluation_mode(model), torch.no_grad():
        graph = torch.export.export(_Drawing(model.decoder), (poses,), strict=False)
    return _packed(graph, ["poses"], ["drawing"])


class _Looking(nn.Module):
    """An image → activations and poses of the classes. Shapes: [1 c h w] → [1 classes], [1 classes d]."""

    def __init__(self, model: CapsuleClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "1 c h w"]) -> tuple[Tensor, Tensor]:
        capsules = self.model.encode(images)
        return capsules.activations[:, 0, 0], capsules.poses[:, 0, 0]


def encoder_graph(model: CapsuleClassifier) -> bytes:
    """The network without its decoder as an ONNX file, weights as in `decoder_graph`.

    It takes an image in [0, 1], [1 c h w], and gives activations [1 classes] and poses [1 classes d].

    Raises:
        CapsellaError: a page cannot read images as this network's were; or the extra `export` is not installed.
        ValueError: a routing with random couplings, which a graph cannot hold.
    """
    check_readable(model)
    check_installed("a page", "export", "onnx", "onnxscript")
    looking = _Looking(cast(CapsuleClassifier, with_backend(model, "eager"))).eval()
    with torch.no_grad():
        graph = torch.export.export(looking, (torch.zeros(1, model.channels, *model.image_size),), strict=False)
    refuse_random(graph)
    return _packed(graph, ["images"], ["activations", "poses"])


def check_readable(model: CapsuleClassifier) -> None:
    """Raises:
    CapsellaError: a page cannot read images as this network's were.
    """
    why = None
    if model.channels not in (1, 3):
        why = f"it takes images of {model.channels} channels"
    elif model.cut is not None:
        why = "its stained cells are cut out first"
    elif model.value_range is not None:
        why = "its images have more than 8 bits"
    if why:
        raise CapsellaError(
            f"network: a page cannot read images as {model.name} needs them, since {why}; leave --network out, or "
            "show them with capsella explore"
        )


def _packed(graph: torch.export.ExportedProgram, inputs: list[str], outputs: list[str]) -> bytes:
    """A graph as an ONNX file with rounded weights."""
    proto = converted(graph, inputs, outputs).model_proto
    _round(proto)
    content: bytes = proto.SerializeToString()
    return content


def _round(proto: Any) -> None:
    """Round large tables of numbers to 16 binary digits: the byte of zeros behind them takes no room once deflated.

    The 11 digits of float16 are too few for DECODER NET: its drawings then differ by up to 0.01 from PyTorch's.
    """
    import onnx

    for tensor in proto.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size > _SMALL:
            rounded = (values.view(np.uint32) + 0x80) & 0xFFFFFF00
            tensor.CopyFrom(onnx.numpy_helper.from_array(rounded.astype(np.uint32).view(np.float32), tensor.name))


def add_engine(arrays: Arrays) -> None:
    """Keep the library in a page, named engine/…: its script, its WebAssembly, and the thread that works with both."""
    scripts = {"library": (FOLDER / "ort.mjs").read_bytes(), "worker": joined_modules("worker.js").encode()}
    for name, content in {**scripts, "wasm": lzma.decompress((FOLDER / "ort.wasm.xz").read_bytes())}.items():
        arrays.add(f"engine/{name}", "u1", np.frombuffer(content, np.uint8))
