"""The ops to measure, at the shapes of the papers and of the thesis, and their batch sizes."""

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.ops import LayerOp, NetworkOp, Op
from capsella.errors import unknown_name
from capsella.layers import CapsuleConv2d, DenseCapsules, coordinate_addition, receptive_field_centres
from capsella.losses import LossOptions
from capsella.routing import (
    DynamicRouting,
    EMRouting,
    HeinsenRouting,
    InvertedAttentionRouting,
    Routing,
    SelfAttentionRouting,
    SelfRouting,
    VariationalRouting,
)


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


def _layer(
    name: str, routing: Routing, layer: Callable[[Routing], CapsuleConv2d], grid: int, types: int, pose: int
) -> LayerOp:
    return LayerOp(name, routing, layer, (grid, grid), types, pose)


ALL, TYPES, DYNAMIC = EMRouting(), EMRouting(competition="types"), DynamicRouting()
EM_CONV1_ALL = _layer("em-conv1-all", ALL, _conv1, 14, 32, 16)
DIGITS = _layer("dynamic-dense", DYNAMIC, _digits, 6, 32, 8)
CAPSNET1 = _layer("dynamic-tied", DYNAMIC, _capsnet1, 6, 64, 8)
SMALL = NetworkOp("matrix-capsnet-small", ALL, "hinton2018_matrix_capsnet_small", LossOptions(name="spread"))
# Each op with its batch sizes, which are measured forward and in training.
OPS: tuple[tuple[Op, tuple[int, ...]], ...] = (
    (_layer("em-conv1-types", TYPES, _conv1, 14, 32, 16), (8,)),
    (EM_CONV1_ALL, (8,)),
    (_layer("em-conv2-types", TYPES, _conv2, 6, 32, 16), (8,)),
    (_layer("em-conv2-all", ALL, _conv2, 6, 32, 16), (8,)),
    (_layer("em-classes", ALL, _em_classes, 4, 32, 16), (32,)),
    (_layer("variational-conv1", VariationalRouting(), _conv1, 14, 32, 16), (8,)),
    (_layer("heinsen-conv1", HeinsenRouting(), _conv1, 14, 32, 16), (8,)),
    (_layer("self-conv1", SelfRouting(), _conv1, 14, 32, 16), (8,)),
    (_layer("self-attention-conv1", SelfAttentionRouting(), _conv1, 14, 32, 16), (8,)),
    (_layer("inverted-attention-conv1", InvertedAttentionRouting(), _conv1, 14, 32, 16), (8,)),
    (DIGITS, (1, 128)),
    (CAPSNET1, (1, 16)),
    (_layer("dynamic-conv", DYNAMIC, _capsnet2, 6, 64, 8), (1, 16)),
    (NetworkOp("capsnet", DYNAMIC, "sabour2017_capsnet", LossOptions(name="margin")), (1, 128)),
    (NetworkOp("matrix-capsnet", ALL, "hinton2018_matrix_capsnet", LossOptions(name="spread")), (1, 8, 32)),
    (SMALL, (32,)),
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
