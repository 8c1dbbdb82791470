"""A decoder of convolutions in a page: a graph with its weights, and ONNX Runtime's WebAssembly to run it."""

import lzma
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.export.needs import check_installed
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
    check_installed("onnx", "onnxscript")
    poses = torch.zeros(1, 1, 1, len(model.classes), pose, device=next(model.parameters()).device)
    with evaluation_mode(model), torch.no_grad():
        graph = torch.export.export(_Drawing(model.decoder), (poses,), strict=False)
        proto = converted(graph, ["poses"], ["drawing"]).model_proto
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
