"""Networks that only answer: each convolution's weights stand once and for all as the processor's library wants them.

PyTorch brings them into oneDNN's own layout at every call, which takes a third of the time of one image where there
are millions of weights. Batch normalisation and ReLUs around a convolution go into it, as in every program for
inference; results are equal to float32 rounding.
"""

import copy
from itertools import chain
from typing import Any, TypeGuard, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.layers import LargeConv2d, PrimaryCapsules
from capsella.models.base import ImageClassifier


def packed(model: ImageClassifier) -> ImageClassifier:
    """A copy of `model` in evaluation mode that answers faster: for inference alone, without gradients.

    Convolutions in float32 on a CPU are packed, where PyTorch has oneDNN; all others stay as they are. The copy shares
    what is not packed with `model`, needs up to twice the memory for convolutions, and cannot be saved.

    A packed convolution is made for one image size and batch size; at another, its first call packs anew.
    """
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    model = copy.deepcopy(model, shared).eval()
    for module in list(model.modules()):
        if isinstance(module, PrimaryCapsules) and module.coupling is not None:
            module.conv, module.coupling = _scaled(module.conv, module.coupling), None
        if type(module) is nn.Sequential:
            layers = _fused(list(module))
            module._modules = {str(number): layer for number, layer in enumerate(layers)}
    for module in list(model.modules()):
        for name, child in module.named_children():
            if _can_pack(child):
                setattr(module, name, PackedConv2d(cast(nn.Conv2d, child)))
    return model


class PackedConv2d(nn.Module):
    """A convolution for inference, with a ReLU behind it where asked for; its weights are packed at the first call.

    Shapes: [b in_channels height width] → [b out_channels rows columns], float32.
    """

    def __init__(self, conv: nn.Conv2d, relu: bool = False) -> None:
        super().__init__()
        self.register_buffer("weight", conv.weight.detach())
        self.register_buffer("bias", None if conv.bias is None else conv.bias.detach())
        self.geometry = conv.padding, conv.stride, conv.dilation, conv.groups
        self.after = "relu" if relu else "none"
        self.packed: Tensor | None = None
        self.packed_for: torch.Size | None = None

    def forward(
        self, maps: Float[Tensor, "b in_channels height width"]
    ) -> Float[Tensor, "b out_channels rows columns"]:
        """Convolve; packs where the shape is not that of the call before."""
        if maps.shape != self.packed_for:
            pack: Any = torch._C._nn.mkldnn_reorder_conv2d_weight  # its stub knows no shape of maps
            self.packed = pack(cast(Tensor, self.weight).to_mkldnn(), *self.geometry, maps.shape)
            self.packed_for = maps.shape
        # What torch.compile calls for a frozen convolution on a CPU.
        run = torch.ops.mkldnn._convolution_pointwise
        out: Tensor = run(maps, self.packed, self.bias, *self.geometry, self.after, [], "")
        return out


def _fused(layers: list[nn.Module]) -> list[nn.Module]:
    """The layers of a chain with less to do: batch normalisation inside its convolutions, and ReLUs behind them."""
    out: list[nn.Module] = []
    for layer in layers:
        before = out[-1] if out else None
        if type(layer) is nn.BatchNorm2d and _is_plain(before) and _is_fixed(layer):
            out[-1] = _normalised_after(before, layer)
        elif _is_plain(layer) and type(before) is nn.BatchNorm2d and _is_fixed(before) and not _pads(layer):
            out[-1] = _normalised_before(before, layer)
        elif type(layer) is nn.ReLU and _can_pack(before):
            out[-1] = PackedConv2d(cast(nn.Conv2d, before), relu=True)
        else:
            out.append(layer)
    return out


def _is_plain(layer: nn.Module | None) -> TypeGuard[nn.Conv2d]:
    """Whether it convolves and nothing else; other subclasses may."""
    return type(layer) in (nn.Conv2d, LargeConv2d)


def _can_pack(layer: nn.Module | None) -> bool:
    if not _is_plain(layer) or not torch.backends.mkldnn.is_available():
        return False
    numbers = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return numbers and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"


def _pads(conv: nn.Conv2d) -> bool:
    """Whether there are zeros around the maps, which a batch normalisation before the convolution leaves zero."""
    return isinstance(conv.padding, str) or any(conv.padding)


def _is_fixed(norm: nn.BatchNorm2d) -> bool:
    return norm.running_mean is not None


def _scale_and_shift(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """What it does to each channel, x → scale·x + shift, in float64."""
    mean, variance = cast(Tensor, norm.running_mean).double(), cast(Tensor, norm.running_var).double()
    scale = (variance + norm.eps).rsqrt() * (1 if norm.weight is None else norm.weight.double())
    return scale, (0 if norm.bias is None else norm.bias.double()) - mean * scale


def _normalised_after(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    scale, shift = _scale_and_shift(norm)
    bias = shift if conv.bias is None else shift + scale * conv.bias.double()
    return _with_values(conv, conv.weight.double() * scale[:, None, None, None], bias)


def _normalised_before(norm: nn.BatchNorm2d, conv: nn.Conv2d) -> nn.Conv2d:
    # Each group of output channels sees its own input channels: [in_channels] → [out_channels in_channels/groups 1 1]
    scale, shift = (
        x.reshape(conv.groups, -1).repeat_interleave(conv.out_channels // conv.groups, 0)[:, :, None, None]
        for x in _scale_and_shift(norm)
    )
    weight = conv.weight.double()
    bias = (weight * shift).sum((1, 2, 3)) + (0 if conv.bias is None else conv.bias.double())
    return _with_values(conv, weight * scale, bias)


def _scaled(conv: nn.Conv2d, factor: Tensor) -> nn.Conv2d:
    return _with_values(conv, conv.weight.double() * factor, conv.bias)


def _with_values(conv: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
    """A convolution of the same geometry and type of numbers with other values."""
    out = copy.copy(conv)
    values = {"weight": weight.to(conv.weight.dtype), "bias": None if bias is None else bias.to(conv.weight.dtype)}
    parameters = {name: None if x is None else nn.Parameter(x, requires_grad=False) for name, x in values.items()}
    out._parameters = cast(dict[str, nn.Parameter | None], parameters)
    return out
