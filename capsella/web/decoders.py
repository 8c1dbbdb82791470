"""Decoders and networks in a page: dense decoders as matrices, networks as ONNX graphs for ONNX Runtime Web."""

import lzma
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, CapsellaError, check_installed
from capsella.export.graph import with_backend
from capsella.export.onnx_files import converted
from capsella.layers import DenseDecoder
from capsella.models import CapsuleClassifier
from capsella.web.arrays import Arrays
from capsella.web.modules import joined_modules

RUNTIME = Path(__file__).parent / "onnxruntime-web"  # the official build, fetched by `tools/page_libraries.py`
NO_DECODER = (
    "There are no dials: this run was trained without a decoder, so nothing can draw what its capsules hold. "
    "To have dials, train it with --model-kwargs reconstruction=True."
)
NOT_DRAWN = (
    "There are no dials: this page draws only with dense decoders of at most 20 million weights. The run's report "
    "shows what this decoder draws."
)
MAX_WEIGHTS = 20_000_000


def why_no_dials(model: CapsuleClassifier) -> str:
    """Return why the page cannot draw with the model's decoder, or an empty string if it can."""
    if model.decoder is None:
        return NO_DECODER
    weights = sum(weight.numel() for weight in model.decoder.parameters())
    return "" if isinstance(model.decoder, DenseDecoder) and weights <= MAX_WEIGHTS else NOT_DRAWN


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


class _Encoder(nn.Module):
    """An encoder to export: image → class activations and poses; [1 c h w] → [1 classes], [1 classes d]."""

    def __init__(self, model: CapsuleClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "1 c h w"]) -> tuple[Tensor, Tensor]:
        capsules = self.model.encode(images)
        return capsules.activations[:, 0, 0], capsules.poses[:, 0, 0]


def encoder_graph(model: CapsuleClassifier) -> bytes:
    """Return the network without its decoder as an ONNX file.

    Its input is an image in [0, 1], [1 c h w]; its outputs are activations [1 classes] and poses [1 classes d].

    Raises:
        CapsellaError: a page cannot preprocess images for this network, or the extra `export` is not installed.
    """
    _check_readable(model)
    check_installed("a page", "export", "onnx", "onnxscript")
    encoder = _Encoder(cast(CapsuleClassifier, with_backend(model, "eager"))).eval()
    with torch.no_grad():
        graph = torch.export.export(encoder, (torch.zeros(1, model.channels, *model.image_size),), strict=False)
    content: bytes = converted(graph, ["images"], ["activations", "poses"]).model_proto.SerializeToString()
    return content


def _check_readable(model: CapsuleClassifier) -> None:
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


def add_runtime(arrays: Arrays) -> None:
    """Add ONNX Runtime Web: its script, its WebAssembly, and the script of the worker thread that runs it."""
    scripts = {"library": (RUNTIME / "ort.mjs").read_bytes(), "worker": joined_modules("worker.js").encode()}
    for name, content in {**scripts, "wasm": lzma.decompress((RUNTIME / "ort.wasm.xz").read_bytes())}.items():
        arrays.add(f"engine/{name}", "u1", np.frombuffer(content, np.uint8))
