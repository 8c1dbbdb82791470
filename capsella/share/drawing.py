"""A dense decoder as matrices, for `page/decoder.js`; why others stay outside."""

from torch import nn

from capsella.layers import DenseDecoder
from capsella.models import CapsuleClassifier
from capsella.share.arrays import Arrays

NO_DECODER = (
    "There are no dials: this run was trained without a decoder, so nothing can draw what its capsules hold. "
    "Train it with --reconstruction to have them."
)
NOT_DENSE = (
    "There are no dials: this network draws with convolutions, and this page holds dense decoders only. "
    "capsella explore has its dials."
)
MOST_WEIGHTS = 8_000_000
"""Of a decoder that a served page holds: 16 MB, and 10 ms for a drawing. One page for all is no use if it is larger."""


def why_no_dials(model: CapsuleClassifier, live: bool = False) -> str:
    """In a sentence; empty where there are dials. live: a server stands behind the page, and draws all."""
    if model.decoder is None:
        return NO_DECODER
    return "" if live or isinstance(model.decoder, DenseDecoder) else NOT_DENSE


def drawn_by_page(model: CapsuleClassifier, live: bool = False) -> bool:
    """Whether the page draws, by weights that it holds. live: a large decoder stays with the server."""
    if not isinstance(model.decoder, DenseDecoder):
        return False
    return not live or sum(weight.numel() for weight in model.decoder.parameters()) <= MOST_WEIGHTS


def add_decoder(model: CapsuleClassifier, arrays: Arrays, prefix: str) -> list[str]:
    """Keep weights [in out] in float16 and biases [out] of each layer; returns what follows each: "relu", "sigmoid".

    Weights stand by inputs, so that the page can pass over all that is zero: masked classes, and silent units.

    Raises:
        ValueError: a decoder that is not dense, or has another function between its layers.
    """
    decoder = model.decoder
    if not isinstance(decoder, DenseDecoder):
        raise ValueError(f"model: must have a dense decoder, got {type(decoder).__name__}")
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
