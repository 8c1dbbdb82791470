"""Decoders and networks in a page: dense decoders as matrices, all others as ONNX graphs for ONNX Runtime Web."""

import lzma
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, CapsellaError, check_installed
from capsella.export.graph import with_backend
from capsella.export.onnx_files import converted
from capsella.layers import DenseDecoder
from capsella.models import CapsuleClassifier
from capsella.models.inference import evaluation_mode
from capsella.web.arrays import Arrays
from capsella.web.modules import joined_modules

RUNTIME = Path(__file__).parent / "onnxruntime-web"  # the official build, fetched by `tools/page_libraries.py`
NO_DECODER = (
    "There are no dials: this run was trained without a decoder, so nothing can draw what its capsules hold. "
    "To have dials, train it with --model-kwargs reconstruction=True."
)
# What computes reconstructions: nothing, matrix products on the page, ONNX Runtime on the page, or the server.
Drawer = Literal["nobody", "matrices", "graph", "server"]
MAX_WEIGHTS = 8_000_000  # weights of a decoder inside a served page: at most 16 MB, and 10 ms per reconstruction
_SMALL = 1024  # tensors with at most this many elements are not rounded


def drawer_of(model: CapsuleClassifier, live: bool = False) -> Drawer:
    """Return what computes reconstructions. live: there is a server, which runs large and convolutional decoders."""
    decoder = model.decoder
    if decoder is None:
        return "nobody"
    if not isinstance(decoder, DenseDecoder):
        return "server" if live else "graph"
    is_large = sum(weight.numel() for weight in decoder.parameters()) > MAX_WEIGHTS
    return "server" if live and is_large else "matrices"


def add_decoder(model: CapsuleClassifier, arrays: Arrays, prefix: str) -> list[str]:
    """Add weights [in out] in float16 and biases [out]; return each layer's activation: "relu", "sigmoid" or "none".

    Weights are ordered by input, so that the page can skip inputs that are zero: masked classes and inactive units.

    Raises:
        ArgumentError: the decoder is not dense, or has other activations.
    """
    decoder = model.decoder
    if not isinstance(decoder, DenseDecoder):
        raise ArgumentError("model", "have a dense decoder", type(decoder).__name__)
    after: list[str] = []
    for module in decoder.modules():
        if isinstance(module, nn.Linear):
            arrays.add(f"{prefix}/weight{len(after)}", "f2", module.weight.detach().float().cpu().T.numpy())
            arrays.add(f"{prefix}/bias{len(after)}", "f4", module.bias.detach().float().cpu().numpy())
            after.append("none")
        elif isinstance(module, nn.ReLU | nn.Sigmoid):
            after[-1] = type(module).__name__.lower()
        elif not isinstance(module, DenseDecoder | nn.Sequential | nn.Flatten | nn.Unflatten):
            raise ArgumentError("decoder", "consist of linear layers, ReLU and sigmoid", type(module).__name__)
    return after


class _Drawing(nn.Module):
    """A decoder to export: class poses, all but one masked, → reconstruction; [1 1 1 classes d] → [1 c h w]."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, poses: Float[Tensor, "1 1 1 classes d"]) -> Tensor:
        drawing: Tensor = self.decoder(poses)
        return drawing


class _Encoder(nn.Module):
    """An encoder to export: image → class activations and poses; [1 c h w] → [1 classes], [1 classes d]."""

    def __init__(self, model: CapsuleClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "1 c h w"]) -> tuple[Tensor, Tensor]:
        capsules = self.model.encode(images)
        return capsules.activations[:, 0, 0], capsules.poses[:, 0, 0]


def decoder_graph(model: CapsuleClassifier, pose: int) -> bytes:
    """Return the decoder as an ONNX file, poses [1 1 1 classes d] → drawing [1 c h w], with rounded weights.

    Args:
        model: a model with any decoder.
        pose: d, the number of pose elements of a class capsule.

    Raises:
        ArgumentError: the model has no decoder. CapsellaError: the extra `export` is not installed.
    """
    if model.decoder is None:
        raise ArgumentError("model", "have a decoder", model.name)
    check_installed("a page", "export", "onnx", "onnxscript")
    poses = torch.zeros(1, 1, 1, len(model.classes), pose, device=next(model.parameters()).device)
    with evaluation_mode(model), torch.no_grad():
        graph = torch.export.export(_Drawing(model.decoder), (poses,), strict=False)
    return _serialize(graph, ["poses"], ["drawing"])


def encoder_graph(model: CapsuleClassifier) -> bytes:
    """Return the network without its decoder as an ONNX file, with rounded weights.

    Its input is an image in [0, 1], [1 c h w]; its outputs are activations [1 classes] and poses [1 classes d].

    Raises:
        CapsellaError: a page cannot preprocess images for this network, or the extra `export` is not installed.
    """
    check_readable(model)
    check_installed("a page", "export", "onnx", "onnxscript")
    encoder = _Encoder(cast(CapsuleClassifier, with_backend(model, "eager"))).eval()
    with torch.no_grad():
        graph = torch.export.export(encoder, (torch.zeros(1, model.channels, *model.image_size),), strict=False)
    return _serialize(graph, ["images"], ["activations", "poses"])


def check_readable(model: CapsuleClassifier) -> None:
    """Raise `CapsellaError` if a page cannot preprocess images for this network."""
    reason = None
    if model.channels not in (1, 3):
        reason = f"it takes images of {model.channels} channels"
    elif model.cut is not None:
        reason = "its stained cells are cropped first"
    elif model.value_range is not None:
        reason = "its images have more than 8 bits"
    if reason:
        raise CapsellaError(
            f"network: a page cannot prepare images for {model.name}, since {reason}; leave --network out, or use "
            "capsella explore"
        )


def _serialize(graph: torch.export.ExportedProgram, inputs: list[str], outputs: list[str]) -> bytes:
    proto = converted(graph, inputs, outputs).model_proto
    _round(proto)
    content: bytes = proto.SerializeToString()
    return content


def _round(proto: Any) -> None:
    """Round large tensors to 16 significant bits: the zero byte at the end of each number compresses to nothing.

    The 11 bits of float16 are too few for DECODER NET, whose reconstructions would differ by up to 0.01 from PyTorch's.
    """
    import onnx

    for tensor in proto.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size > _SMALL:
            rounded = (values.view(np.uint32) + 0x80) & 0xFFFFFF00
            tensor.CopyFrom(onnx.numpy_helper.from_array(rounded.astype(np.uint32).view(np.float32), tensor.name))


def add_runtime(arrays: Arrays) -> None:
    """Add ONNX Runtime Web: its script, its WebAssembly, and the script of the worker thread that runs it."""
    scripts = {"library": (RUNTIME / "ort.mjs").read_bytes(), "worker": joined_modules("worker.js").encode()}
    for name, content in {**scripts, "wasm": lzma.decompress((RUNTIME / "ort.wasm.xz").read_bytes())}.items():
        arrays.add(f"engine/{name}", "u1", np.frombuffer(content, np.uint8))
