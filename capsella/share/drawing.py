"""Who draws for a page; a dense decoder as matrices, for `page/decoder.js`."""

from typing import Literal

from torch import nn

from capsella.errors import ArgumentError
from capsella.layers import DenseDecoder
from capsella.models import CapsuleClassifier
from capsella.share.arrays import Arrays

NO_DECODER = (
    "There are no dials: this run was trained without a decoder, so nothing can draw what its capsules hold. "
    "Train it with --model.reconstruction to have them."
)
Drawer = Literal["nobody", "matrices", "graph", "server"]
"""Who draws: the page as products of matrices, the page with ONNX Runtime, or the server behind it."""
MOST_WEIGHTS = 8_000_000
"""Of a decoder that a served page holds: 16 MB, and 10 ms for a drawing. One page for all is no use if it is larger."""


def drawer_of(model: CapsuleClassifier, live: bool = False) -> Drawer:
    """Who draws. live: a server stands behind the page, and draws what is large or not dense."""
    decoder = model.decoder
    if decoder is None:
        return "nobody"
    if not isinstance(decoder, DenseDecoder):
        return "server" if live else "graph"
    large = sum(weight.numel() for weight in decoder.parameters()) > MOST_WEIGHTS
    return "server" if live and large else "matrices"


def add_decoder(model: CapsuleClassifier, arrays: Arrays, prefix: str) -> list[str]:
    """Keep weights [in out] in float16 and biases [out] of each layer; returns what follows each: "relu", "sigmoid".

    Weights stand by inputs, so that the page can pass over all that is zero: masked classes, and silent units.

    Raises:
        ValueError: a decoder that is not dense, or has another function between its layers.
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
            raise ValueError(f"decoder: must be of linear layers, ReLU and sigmoid, got a {type(module).__name__}")
    return after
