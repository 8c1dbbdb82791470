"""Ops to measure: one capsule layer or one network, with any routing, at any batch size.

Operations are counted as the algorithm needs them, whoever computes it; a multiplication and an addition count one
each. For a vote element V, with q numbers in a row of a pose: 2q to make it, once; in each iteration of EM, variational
and Heinsen routing 2 for Σ r V and 4 for Σ r (V − μ)², and 4 for (V − μ)²/σ² in all but the last; in dynamic routing
and inverted attention 2 for Σ c V, and 2 for V·v in all but the last; in self-routing 2, without its logits; in
self-attention 6. Tied dynamic routing needs no votes: s = Σ_t W (Σ c u), and û·v = u·(W v). A training step counts
three times the forward pass, as for matrix products: gradients of both factors. Recomputation counts nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from capsella.layers import CapsuleConv2d
from capsella.losses import LossOptions, total_loss
from capsella.models import CapsuleClassifier, create_model
from capsella.routing import (
    DynamicRouting,
    EMRouting,
    HeinsenRouting,
    InvertedAttentionRouting,
    Routing,
    SelfAttentionRouting,
    SelfRouting,
    VariationalRouting,
    length,
    squash,
)
from capsella.types import Capsules

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Op(ABC):
    """Something with a routing inside. name: as the command line takes it. routing: its options."""

    name: str
    routing: Routing

    @abstractmethod
    def module(self, routing: Routing) -> nn.Module:
        """Return the layer or network, float32 on the CPU, with the same weights for every routing."""

    @abstractmethod
    def inputs(self, batch: int) -> Inputs:
        """Return the same numbers on every call."""

    @abstractmethod
    def outputs(self, module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """Return what the module computes, by name."""

    @abstractmethod
    def backward(self, module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """Return the outputs after adding their gradients to the parameters, and to the inputs that require them."""

    @abstractmethod
    def flops(self, inputs: Inputs, training: bool) -> int:
        """Return the operations that the algorithm needs."""


@dataclass(frozen=True)
class LayerOp(Op):
    """A capsule layer on a grid of children with `types` types and `pose` elements."""

    layer: Callable[[Routing], CapsuleConv2d]
    grid: tuple[int, int]
    types: int
    pose: int

    def module(self, routing: Routing) -> CapsuleConv2d:
        """Return the layer as initialised."""
        torch.manual_seed(0)
        return self.layer(routing)

    def inputs(self, batch: int) -> Inputs:
        """Return poses and activations, and gradients of the parents' poses and activations."""
        generator = torch.Generator().manual_seed(1)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        poses = normal(batch, *self.grid, self.types, self.pose)
        if self.routing.activation_kind == "lengths":  # it routes squashed capsules
            poses = squash(poses)
            activations = length(poses)
        else:
            activations = normal(batch, *self.grid, self.types).sigmoid()
        layer = self.module(self.routing)
        parents = (batch, *layer.geometry.grid(self.grid), layer.weight.shape[3])
        elements = self.pose if layer.geometry.matrix else layer.weight.shape[5]
        return poses.requires_grad_(), activations.requires_grad_(), normal(*parents, elements), normal(*parents)

    def outputs(self, module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """Return the parents."""
        return module(Capsules(inputs[0], inputs[1]))._asdict()

    def backward(self, module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """Propagate the fixed gradients of the parents back."""
        outputs = self.outputs(module, inputs)
        pairs = zip((outputs["poses"], outputs["activations"]), inputs[2:], strict=True)
        needed = [pair for pair in pairs if pair[0].requires_grad]  # activations of inverted attention are constant
        torch.autograd.backward([output for output, _ in needed], [gradient for _, gradient in needed])
        return outputs

    def flops(self, inputs: Inputs, training: bool) -> int:
        """Return those of the layer."""
        return layer_flops(self.module(self.routing), inputs[0].shape) * (3 if training else 1)


@dataclass(frozen=True)
class NetworkOp(Op):
    """A registered capsule network, with the loss of its paper."""

    model: str
    loss: LossOptions

    def module(self, routing: Routing) -> CapsuleClassifier:
        """Return the network as initialised."""
        torch.manual_seed(0)
        model = create_model(self.model, routing=routing)
        assert isinstance(model, CapsuleClassifier)
        return model

    def inputs(self, batch: int) -> Inputs:
        """Return images and labels."""
        generator = torch.Generator().manual_seed(1)
        model = self.module(self.routing)
        images = torch.rand(batch, model.channels, *model.image_size, generator=generator)
        return images, torch.randint(len(model.classes), (batch,), generator=generator)

    def outputs(self, module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """Return activations, class poses, and the reconstruction if there is a decoder."""
        return _named(module(inputs[0]))

    def backward(self, module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """Propagate the paper's loss back; a decoder sees the true classes."""
        images, labels = inputs
        output = module(images, labels)
        total_loss(output, images, labels, self.loss).total.backward()
        return _named(output)

    def flops(self, inputs: Inputs, training: bool) -> int:
        """Count the network without capsule layers, and add those of its capsule layers."""
        model, image = self.module(self.routing), tuple(tensor[:1] for tensor in inputs)
        with FlopCounterMode(display=False) as counter:
            bare = without_capsules(model)
            _ = self.backward(bare, image) if training else self.outputs(bare, image)
        counted: list[int] = []

        def count(layer: nn.Module, children: tuple[Capsules]) -> None:
            assert isinstance(layer, CapsuleConv2d)
            counted.append(layer_flops(layer, children[0].poses.shape))

        hooks = [layer.register_forward_pre_hook(count) for layer in model.capsule_layers]
        with torch.no_grad():
            model(image[0])
        for hook in hooks:
            hook.remove()
        return (int(counter.get_total_flops()) + sum(counted) * (3 if training else 1)) * len(inputs[0])


def _named(output: Any) -> dict[str, Tensor]:
    named = {"activations": output.activations, "poses": output.capsules.poses}
    return named if output.reconstruction is None else {**named, "reconstruction": output.reconstruction}


class _FirstNumbers(nn.Module):
    """Takes the first numbers of the feature maps for the class poses, which costs nothing."""

    def __init__(self, classes: int, pose: int) -> None:
        super().__init__()
        self.shape = (1, 1, classes, pose)

    def forward(self, maps: Tensor) -> Capsules:
        """Turn maps [b channels height width] into poses [b 1 1 classes pose] and their lengths."""
        _, _, classes, pose = self.shape
        poses = maps.flatten(1)[:, : classes * pose].unflatten(1, self.shape)
        return Capsules(poses, length(poses))


def without_capsules(model: CapsuleClassifier) -> CapsuleClassifier:
    """Return only the convolutions and the decoder of a network, which share its weights."""
    last = model.capsule_layers[-1]
    assert isinstance(last, CapsuleConv2d)
    pose = last.weight.shape[4] * last.weight.shape[5] if last.geometry.matrix else last.weight.shape[5]
    convolution = model.primary.conv
    assert isinstance(convolution, nn.Conv2d)
    head = nn.Sequential(_FirstNumbers(len(model.classes), pose))
    shape = {"image_size": model.image_size, "channels": model.channels, "classes": model.classes}
    return CapsuleClassifier(model.backbone, convolution, head, model.decoder, **shape)  # type: ignore[arg-type]


def layer_flops(layer: CapsuleConv2d, poses: tuple[int, ...]) -> int:
    """Return the operations of a forward pass for children's poses of shape [b h w c_in p].

    Raises:
        ValueError: a routing whose operations are not counted here.
    """
    batch, height, width, c_in, p = poses
    c_out, q, columns = layer.weight.shape[3:]
    rows, cols = layer.geometry.grid((height, width))
    positions = layer.geometry.kernel[0] * layer.geometry.kernel[1]
    links = batch * rows * cols * positions * c_in * c_out  # pairs of a child and a parent
    d = p // q * columns
    routing = layer.routing
    if isinstance(routing, EMRouting | VariationalRouting | HeinsenRouting):
        T = routing.iterations
        return links * d * (2 * q + 6 * T + 4 * (T - 1))
    if isinstance(routing, DynamicRouting | InvertedAttentionRouting):
        passes = 2 * routing.iterations - 1  # sums of votes, and agreements with them
    elif isinstance(routing, SelfRouting | SelfAttentionRouting):
        passes = 1 if isinstance(routing, SelfRouting) else 3
    else:
        raise ValueError(f"routing: must be one with kernels of its own to be counted, got {routing.name!r}")
    if layer.geometry.tied and isinstance(routing, DynamicRouting):
        return passes * 2 * (links * p + links // positions * d * q)
    return links * d * (2 * q + 2 * passes)
