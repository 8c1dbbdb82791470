"""Networks at inference: without a decoder, with scores of OOD detection, and with convolutions optimised for a CPU."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeGuard, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from capsella.errors import CapsellaError, check_argument
from capsella.layers import FastConv2d, PrimaryCapsules
from capsella.models.base import ImageClassifier
from capsella.types import Output
from capsella.uncertainty.ood import (
    OODDetector,
    low_level_features,
    map_statistics,
    reconstruction_score,
    rotation_score,
)


@contextmanager
def evaluation_mode(model: ImageClassifier) -> Iterator[None]:
    """Put `model` into evaluation mode, and restore the mode of each module afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def inference(model: ImageClassifier) -> Iterator[torch.device]:
    """Run `model` in evaluation mode and without gradients; yields its device and restores each module's mode."""
    with evaluation_mode(model), torch.inference_mode():
        yield device_of(model)


def device_of(model: ImageClassifier) -> torch.device:
    """Return the device of a model's weights."""
    return next(model.parameters()).device


def without_decoder(model: ImageClassifier) -> ImageClassifier:
    """Return a network that shares the weights of `model` but has no decoder."""
    if not model.has_decoder:
        return model
    model = copy.copy(model)  # shares the weights, but not the dictionary of submodules
    model._modules = {**model._modules, "decoder": None}
    return model


def check_decoder(model: ImageClassifier, purpose: str) -> None:
    """Raise `ArgumentError` if `model` has no decoder, which `purpose` needs."""
    check_argument(model.has_decoder, f"have a decoder for {purpose}", model=type(model).__name__)


def extract(
    model: ImageClassifier,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"] | None = None,
    *,
    rotate: bool = False,
) -> tuple[Output, dict[str, Tensor]]:
    """Return the model's output, and the features and scores that an `OODDetector` is fitted to.

    Args:
        model: model to run.
        images: images to classify.
        labels: the classes whose poses are returned; None takes the predicted ones.
        rotate: also classify the images upside down.

    Returns:
        The output, and by name: the features [b d] "low_level", "features" if the model has feature maps, and "poses"
        if it has class capsules; the scores [b] "reconstruction" if the model decodes, and "rotation" if requested.
    """
    with _last_maps(model) as maps:
        output = model(images) if labels is None else model(images, labels)
    extracted = {"low_level": low_level_features(images)}
    if maps:
        extracted["features"] = map_statistics(maps[-1])
    chosen = output.activations.argmax(1) if labels is None else labels
    if output.capsules is not None:
        at = torch.arange(images.shape[0], device=images.device)
        extracted["poses"] = output.capsules.poses[at, 0, 0, chosen].float()
    if output.reconstruction is not None and output.reconstruction.shape == images.shape:
        extracted["reconstruction"] = reconstruction_score(images, output.reconstruction)
    if rotate:
        rotated = without_decoder(model)(images.flip((2, 3)))
        extracted["rotation"] = rotation_score(output.activations, rotated.activations)
    return output, extracted


def predict_with_scores(
    model: ImageClassifier, images: Float[Tensor, "b c h w"], detector: OODDetector
) -> tuple[Output, Float[Tensor, "b scores"]]:
    """Return the model's output and, normalised, the scores that `detector.scores` names; with gradients if enabled."""
    output, extracted = extract(model, images, rotate="rotation" in detector.scores)
    predicted = output.activations.argmax(1)
    columns = [
        detector.gaussians[name].distance(extracted[name], predicted) if name in detector.gaussians else extracted[name]
        for name in detector.scores
    ]
    return output, detector.normalized_scores(torch.stack(columns, 1))


def without_unused_decoder(model: ImageClassifier, detector: OODDetector | None) -> ImageClassifier:
    """Return `model` itself if the detector needs reconstructions, otherwise without its decoder."""
    return model if detector is not None and "reconstruction" in detector.scores else without_decoder(model)


@contextmanager
def _last_maps(model: ImageClassifier) -> Iterator[list[Tensor]]:
    """Collect the last feature maps of each call, if the model has any."""
    maps: list[Tensor] = []
    try:
        layers = model.feature_layers()
    except CapsellaError:
        yield maps
        return
    last = layers[-1] if isinstance(layers, nn.Sequential) else layers
    hook = last.register_forward_hook(lambda module, inputs, output: maps.append(output))
    try:
        yield maps
    finally:
        hook.remove()


def optimize_for_inference(model: ImageClassifier) -> ImageClassifier:
    """Return a copy of `model` in evaluation mode that is faster on a CPU; outputs are equal up to float32 rounding.

    PyTorch converts convolution weights to oneDNN's layout at every call. In networks with millions of weights, this is
    a third of the time for one image. The copy converts them once, and fuses batch normalisations and ReLUs into the
    preceding convolutions.

    Only float32 convolutions on a CPU are converted, and only if PyTorch has oneDNN. The copy shares the other tensors
    with `model`, needs up to twice the memory for convolutions, and cannot be trained or saved. Weights are converted
    for one image size and batch size; the first call with another shape converts them again.
    """
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    model = copy.deepcopy(model, shared).eval()
    for module in list(model.modules()):
        if isinstance(module, PrimaryCapsules) and module.coupling is not None:
            weight = module.conv.weight.detach() * module.coupling
            module.conv.weight, module.coupling = nn.Parameter(weight, requires_grad=False), None
        if type(module) is nn.Sequential:
            layers = _fused(list(module))
            module._modules = {str(number): layer for number, layer in enumerate(layers)}
    for module in list(model.modules()):
        for name, child in module.named_children():
            if _can_pack(child):
                setattr(module, name, PackedConv2d(child))
    return model


class PackedConv2d(nn.Module):
    """A convolution for inference, with an optional ReLU, whose weights are converted to oneDNN's layout once.

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
        """Convolve; convert the weights if the maps' shape differs from the previous call's."""
        if maps.shape != self.packed_for:
            pack: Any = torch._C._nn.mkldnn_reorder_conv2d_weight  # the type stub lacks its last argument
            self.packed = pack(cast(Tensor, self.weight).to_mkldnn(), *self.geometry, maps.shape)
            self.packed_for = maps.shape
        # torch.compile calls the same operator for a frozen convolution on a CPU.
        run = torch.ops.mkldnn._convolution_pointwise
        out: Tensor = run(maps, self.packed, self.bias, *self.geometry, self.after, [], "")
        return out


def _fused(layers: list[nn.Module]) -> list[nn.Module]:
    """Fuse the batch normalisations and ReLUs that follow convolutions in a chain of layers into them."""
    out: list[nn.Module] = []
    for layer in layers:
        before = out[-1] if out else None
        if type(layer) is nn.BatchNorm2d and layer.running_mean is not None and _is_plain(before):
            out[-1] = fuse_conv_bn_eval(before, layer)
        elif type(layer) is nn.ReLU and _can_pack(before):
            out[-1] = PackedConv2d(before, relu=True)
        else:
            out.append(layer)
    return out


def _is_plain(layer: nn.Module | None) -> TypeGuard[nn.Conv2d]:
    """Return True for a convolution that does nothing else; other subclasses may."""
    return type(layer) in (nn.Conv2d, FastConv2d)


def _can_pack(layer: nn.Module | None) -> TypeGuard[nn.Conv2d]:
    if not _is_plain(layer) or not torch.backends.mkldnn.is_available():
        return False
    is_zero_padded = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return is_zero_padded and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"
