"""The ops to measure, at the shapes of the papers and of the thesis: capsule layers and networks, with any routing."""

import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from capsella.errors import unknown_name
from capsella.layers import CapsuleConv2d, DenseCapsules, coordinate_addition, receptive_field_centres
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


@dataclass(frozen=True)
class LayerOp(Op):
    """A capsule layer on a grid of children."""

    layer: Callable[[Routing], CapsuleConv2d]
    grid: tuple[int, int]

    def module(self, routing: Routing) -> CapsuleConv2d:
        """Return the layer as initialised."""
        torch.manual_seed(0)
        return self.layer(routing)

    def inputs(self, batch: int) -> Inputs:
        """Return poses and activations, and gradients of the parents' poses and activations."""
        generator = torch.Generator().manual_seed(1)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        layer = self.module(self.routing)
        types, parents, q, columns = layer.weight.shape[2:]
        is_matrix = layer.geometry.matrix
        poses = normal(batch, *self.grid, types, q * q if is_matrix else q)
        if self.routing.activation_kind == "lengths":  # it routes squashed capsules
            poses = squash(poses)
            activations = length(poses)
        else:
            activations = normal(batch, *self.grid, types).sigmoid()
        out = (batch, *layer.geometry.grid(self.grid), parents)
        elements = q * columns if is_matrix else columns
        return poses.requires_grad_(), activations.requires_grad_(), normal(*out, elements), normal(*out)

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


def _named(output: Any) -> dict[str, Tensor]:
    named = {"activations": output.activations, "poses": output.capsules.poses}
    return named if output.reconstruction is None else {**named, "reconstruction": output.reconstruction}


# The cases


def _conv1(routing: Routing) -> CapsuleConv2d:
    return CapsuleConv2d(32, 16, 32, 16, 3, 2, pose="matrix", routing=routing)


def _conv2(routing: Routing) -> CapsuleConv2d:
    return CapsuleConv2d(32, 16, 32, 16, 3, 1, pose="matrix", routing=routing)


def _em_classes(routing: Routing) -> CapsuleConv2d:
    centres = receptive_field_centres((32, 32), [(5, 2), (1, 1), (3, 2), (3, 1)])
    offset = coordinate_addition(centres, 16)
    return DenseCapsules((4, 4), 32, 16, 5, 16, tied=True, pose="matrix", vote_offset=offset, routing=routing)


def _digits(routing: Routing) -> CapsuleConv2d:
    return DenseCapsules((6, 6), 32, 8, 10, 16, routing=routing)


def _capsnet1(routing: Routing) -> CapsuleConv2d:
    return DenseCapsules((6, 6), 64, 8, 15, 96, tied=True, routing=routing)


def _capsnet2(routing: Routing) -> CapsuleConv2d:
    return CapsuleConv2d(64, 8, 64, 8, 3, routing=routing)


@dataclass(frozen=True)
class Case:
    """An op at one batch size. training: a whole training step, or else the forward pass without gradients."""

    op: Op
    batch: int
    training: bool

    @property
    def name(self) -> str:
        """Its name, e.g. `em-conv1-types/b8/forward`."""
        return f"{self.op.name}/b{self.batch}/{'training' if self.training else 'forward'}"


ALL, TYPES, DYNAMIC = EMRouting(), EMRouting(competition="types"), DynamicRouting()
# Each op with its batch sizes, which are measured forward and in training.
OPS: tuple[tuple[Op, tuple[int, ...]], ...] = (
    (LayerOp("em-conv1-types", TYPES, _conv1, (14, 14)), (8,)),
    (LayerOp("em-conv1-all", ALL, _conv1, (14, 14)), (8,)),
    (LayerOp("em-conv2-types", TYPES, _conv2, (6, 6)), (8,)),
    (LayerOp("em-conv2-all", ALL, _conv2, (6, 6)), (8,)),
    (LayerOp("em-classes", ALL, _em_classes, (4, 4)), (32,)),
    (LayerOp("variational-conv1", VariationalRouting(), _conv1, (14, 14)), (8,)),
    (LayerOp("heinsen-conv1", HeinsenRouting(), _conv1, (14, 14)), (8,)),
    (LayerOp("self-conv1", SelfRouting(), _conv1, (14, 14)), (8,)),
    (LayerOp("self-attention-conv1", SelfAttentionRouting(), _conv1, (14, 14)), (8,)),
    (LayerOp("inverted-attention-conv1", InvertedAttentionRouting(), _conv1, (14, 14)), (8,)),
    (LayerOp("dynamic-dense", DYNAMIC, _digits, (6, 6)), (1, 128)),
    (LayerOp("dynamic-tied", DYNAMIC, _capsnet1, (6, 6)), (1, 16)),
    (LayerOp("dynamic-conv", DYNAMIC, _capsnet2, (6, 6)), (1, 16)),
    (NetworkOp("capsnet", DYNAMIC, "sabour2017_capsnet", LossOptions(name="margin")), (1, 128)),
    (NetworkOp("matrix-capsnet", ALL, "hinton2018_matrix_capsnet", LossOptions(name="spread")), (1, 8, 32)),
    (NetworkOp("matrix-capsnet-small", ALL, "hinton2018_matrix_capsnet_small", LossOptions(name="spread")), (32,)),
)
CASES = tuple(Case(op, batch, training) for op, batches in OPS for batch in batches for training in (False, True))


def select(pattern: str) -> tuple[Case, ...]:
    """Return the cases whose name matches a shell pattern or begins with it.

    Raises:
        ArgumentError: no case does.
    """
    chosen = tuple(case for case in CASES if fnmatch.fnmatch(case.name, pattern) or case.name.startswith(pattern))
    if not chosen:
        raise unknown_name("pattern", pattern, [case.name for case in CASES])
    return chosen
