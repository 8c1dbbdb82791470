"""What is measured: one capsule layer, or one whole network, with any routing, on inputs of any batch size."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.flops import layer_flops, network_flops
from capsella.layers import CapsuleConv2d
from capsella.losses import LossOptions, total_loss
from capsella.models import create_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.routing import Routing, length, squash
from capsella.types import Capsules

Inputs = tuple[Tensor, ...]


class Problem(NamedTuple):
    """What a capsule layer is asked: its children, and the gradients that come back for its parents."""

    name: str
    layer: CapsuleConv2d
    children: Capsules
    gradients: Capsules


@dataclass(frozen=True)
class Op(ABC):
    """Something with a routing inside. `module` gives the same weights for every routing.

    name: as the command line takes it. routing: its options; a contender brings the implementation.
    """

    has_optimizer: ClassVar[bool]
    """Whether a training step ends with Adam's update; where not, with the gradients."""

    name: str
    routing: Routing

    @abstractmethod
    def module(self, routing: Routing) -> nn.Module:
        """The layer or network, float32 on the CPU, in training mode."""

    @abstractmethod
    def inputs(self, batch: int) -> Inputs:
        """The same numbers on every call."""

    @abstractmethod
    def outputs(self, module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """What the module computes, by name."""

    @abstractmethod
    def backward(self, module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """The outputs, after their gradients were added to every parameter's, and every input's that asks for one."""

    @abstractmethod
    def problems(self, inputs: Inputs) -> list[Problem]:
        """What its capsule layers are asked in a training step, for the parity check."""

    @abstractmethod
    def flops(self, inputs: Inputs, training: bool) -> int:
        """Floating point operations of the algorithm: see `benchmarks.flops`."""


def follow_back(outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """The backward pass from all outputs that have one: the activations of inverted attention are constants."""
    pairs = [pair for pair in zip(outputs, gradients, strict=True) if pair[0].requires_grad]
    torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])


@dataclass(frozen=True)
class LayerOp(Op):
    """A capsule layer on a grid of children.

    layer: from a routing to the layer. grid: rows and columns of children. pose: their pose elements. types: theirs.
    """

    has_optimizer: ClassVar[bool] = False

    layer: Callable[[Routing], CapsuleConv2d]
    grid: tuple[int, int]
    types: int
    pose: int

    def module(self, routing: Routing) -> CapsuleConv2d:
        """The layer, as initialised."""
        torch.manual_seed(0)
        return self.layer(routing)

    def inputs(self, batch: int) -> Inputs:
        """Poses and activations, and the gradients that come back for the parents' poses and activations."""
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
        """The parents."""
        return module(Capsules(inputs[0], inputs[1]))._asdict()

    def backward(self, module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """With fixed random gradients of the parents."""
        outputs = self.outputs(module, inputs)
        follow_back([outputs["poses"], outputs["activations"]], inputs[2:])
        return outputs

    def problems(self, inputs: Inputs) -> list[Problem]:
        """The one layer, with these inputs."""
        poses, activations, *gradients = (tensor.detach() for tensor in inputs)
        layer = self.module(self.routing)
        return [Problem(self.name, layer, Capsules(poses, activations), Capsules(*gradients))]

    def flops(self, inputs: Inputs, training: bool) -> int:
        """Of the layer alone."""
        return layer_flops(self.module(self.routing), inputs[0].shape) * (3 if training else 1)


@dataclass(frozen=True)
class NetworkOp(Op):
    """A registered capsule network, with the loss that its paper trains it on."""

    has_optimizer: ClassVar[bool] = True

    model: str
    loss: LossOptions

    def module(self, routing: Routing) -> CapsuleClassifier:
        """The network, as initialised."""
        torch.manual_seed(0)
        model = create_model(self.model, routing=routing)
        assert isinstance(model, CapsuleClassifier)
        return model

    def inputs(self, batch: int) -> Inputs:
        """Images and labels."""
        generator = torch.Generator().manual_seed(1)
        model = self.module(self.routing)
        images = torch.rand(batch, model.channels, *model.image_size, generator=generator)
        return images, torch.randint(len(model.classes), (batch,), generator=generator)

    def outputs(self, module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """Activations and class poses; where there is a decoder, the images from the predicted classes."""
        return _named(module(inputs[0]))

    def backward(self, module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """Of the paper's loss; where there is a decoder, it sees the true classes."""
        images, labels = inputs
        output = module(images, labels)
        total_loss(output, images, labels, self.loss).total.backward()
        return _named(output)

    def problems(self, inputs: Inputs) -> list[Problem]:
        """Every capsule layer, with the children and the gradients that reach it in the eager network."""
        model = self.module(dataclasses.replace(self.routing, backend="eager"))  # type: ignore[call-arg]
        seen: list[tuple[CapsuleConv2d, Capsules, Capsules]] = []

        def keep(layer: nn.Module, children: tuple[Capsules], parents: Capsules) -> None:
            assert isinstance(layer, CapsuleConv2d)
            for tensor in parents:
                tensor.retain_grad()
            seen.append((layer, children[0], parents))

        for layer in model.capsule_layers:
            layer.register_forward_hook(keep)
        self.backward(model, inputs)
        return [
            Problem(
                f"{self.name}.capsule_layers.{k}",
                layer,
                Capsules(*(tensor.detach() for tensor in children)),
                Capsules(*(torch.zeros_like(x) if x.grad is None else x.grad for x in parents)),
            )
            for k, (layer, children, parents) in enumerate(seen)
        ]

    def flops(self, inputs: Inputs, training: bool) -> int:
        """Of the convolutions, the capsule layers and the decoder."""
        model = self.module(self.routing)

        def step(network: nn.Module, few: Inputs) -> Any:
            return self.backward(network, few) if training else self.outputs(network, few)

        one = tuple(tensor[:1] for tensor in inputs)
        return network_flops(model, without_capsules(model), one, step, training) * len(inputs[0])


def _named(output: Any) -> dict[str, Tensor]:
    named = {"activations": output.activations, "poses": output.capsules.poses}
    return named if output.reconstruction is None else {**named, "reconstruction": output.reconstruction}


class _FirstNumbers(nn.Module):
    """Takes the first numbers of the feature maps for the class poses: what costs nothing where a layer was cut out."""

    def __init__(self, classes: int, pose: int) -> None:
        super().__init__()
        self.shape = (1, 1, classes, pose)

    def forward(self, maps: Tensor) -> Capsules:
        """[b channels height width] → poses [b 1 1 classes pose] and their lengths."""
        _, _, classes, pose = self.shape
        poses = maps.flatten(1)[:, : classes * pose].unflatten(1, self.shape)
        return Capsules(poses, length(poses))


def without_capsules(model: CapsuleClassifier) -> CapsuleClassifier:
    """The convolutions and the decoder of a network alone, sharing its weights: no squash and no capsule layer."""
    last = model.capsule_layers[-1]
    assert isinstance(last, CapsuleConv2d)
    pose = last.weight.shape[4] * last.weight.shape[5] if last.geometry.matrix else last.weight.shape[5]
    convolution = model.primary.conv
    assert isinstance(convolution, nn.Conv2d)
    return CapsuleClassifier(
        model.backbone,
        convolution,
        nn.Sequential(_FirstNumbers(len(model.classes), pose)),
        model.decoder,
        image_size=model.image_size,
        channels=model.channels,
        classes=model.classes,
    )
