"""The registry: ops at the shapes of the papers and of the thesis, batch sizes, and the bars each must pass."""

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

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
class Bars:
    """What the fused kernels must reach on two CPU cores in float32. None: no bar."""

    plain: float | None = None
    """Times as fast as the plain formulation, at least."""
    compile: float | None = None
    """Times as fast as `torch.compile` of the eager backend, at least."""
    bare: float | None = None
    """Times as long as the network without its capsule layers, at most."""
    memory: float | None = None
    """Peak memory as a share of the plain formulation's, at most."""
    images_per_second: float | None = None
    memory_mib: float | None = None


@dataclass(frozen=True)
class Case:
    """An op at one batch size; `training`: a whole training step, or else the forward pass without gradients."""

    op: Op
    batch: int
    training: bool
    bars: Bars = Bars()

    @property
    def name(self) -> str:
        """As in `em-conv1-types/b8/forward`."""
        return f"{self.op.name}/b{self.batch}/{'training' if self.training else 'forward'}"


EM, TYPES, DYNAMIC = EMRouting(), EMRouting(competition="types"), DynamicRouting()


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


EM_CONV1_TYPES = _layer("em-conv1-types", TYPES, _conv1, 14, 32, 16)
EM_CONV1_ALL = _layer("em-conv1-all", EM, _conv1, 14, 32, 16)
EM_CONV2_TYPES = _layer("em-conv2-types", TYPES, _conv2, 6, 32, 16)
EM_CONV2_ALL = _layer("em-conv2-all", EM, _conv2, 6, 32, 16)
EM_CLASSES = _layer("em-classes", EM, _em_classes, 4, 32, 16)
VARIATIONAL = _layer("variational-conv1", VariationalRouting(), _conv1, 14, 32, 16)
HEINSEN = _layer("heinsen-conv1", HeinsenRouting(), _conv1, 14, 32, 16)
PRODUCTS = (
    _layer("self-conv1", SelfRouting(), _conv1, 14, 32, 16),
    _layer("self-attention-conv1", SelfAttentionRouting(), _conv1, 14, 32, 16),
    _layer("inverted-attention-conv1", InvertedAttentionRouting(), _conv1, 14, 32, 16),
)
"""Routings made of two products of their votes."""
DIGITS = _layer("dynamic-dense", DYNAMIC, _digits, 6, 32, 8)
CAPSNET1 = _layer("dynamic-tied", DYNAMIC, _capsnet1, 6, 64, 8)
CAPSNET2 = _layer("dynamic-conv", DYNAMIC, _capsnet2, 6, 64, 8)
CAPSNET = NetworkOp("capsnet", DYNAMIC, "sabour2017_capsnet", LossOptions(name="margin"))
MATRIX = NetworkOp("matrix-capsnet", EM, "hinton2018_matrix_capsnet", LossOptions(name="spread"))
SMALL = NetworkOp("matrix-capsnet-small", EM, "hinton2018_matrix_capsnet_small", LossOptions(name="spread"))

MIB_OF_GB = 1e9 / 2**20
CASES = (
    Case(EM_CONV1_TYPES, 8, False, Bars(plain=30, compile=12)),
    Case(EM_CONV1_TYPES, 8, True, Bars(plain=15, memory=1 / 20)),
    Case(EM_CONV1_ALL, 8, False, Bars(plain=20)),
    Case(EM_CONV1_ALL, 8, True, Bars(plain=15, memory=1 / 20)),
    Case(EM_CONV2_TYPES, 8, False),
    Case(EM_CONV2_TYPES, 8, True),
    Case(EM_CONV2_ALL, 8, False),
    Case(EM_CONV2_ALL, 8, True),
    Case(EM_CLASSES, 32, False, Bars(plain=10)),
    Case(EM_CLASSES, 32, True, Bars(plain=10)),
    *(Case(op, 8, training, Bars(plain=10)) for op in (VARIATIONAL, HEINSEN, *PRODUCTS) for training in (False, True)),
    *(Case(DIGITS, batch, training, Bars(plain=4, compile=2)) for batch in (1, 128) for training in (False, True)),
    *(Case(CAPSNET1, batch, training, Bars(plain=20)) for batch in (1, 16) for training in (False, True)),
    *(Case(CAPSNET2, batch, training, Bars(plain=8)) for batch in (1, 16) for training in (False, True)),
    Case(CAPSNET, 1, False, Bars(bare=1.1, images_per_second=1 / 5.6e-3)),
    Case(CAPSNET, 128, False, Bars(bare=1.1, images_per_second=380)),
    Case(CAPSNET, 128, True, Bars(bare=1.1, images_per_second=105, memory_mib=0.8 * MIB_OF_GB)),
    Case(MATRIX, 1, False, Bars(images_per_second=1 / 7e-3)),
    Case(MATRIX, 8, True, Bars(plain=20, images_per_second=50, memory_mib=0.4 * MIB_OF_GB)),
    Case(MATRIX, 32, True, Bars(plain=20)),
    Case(SMALL, 32, True, Bars(plain=12, images_per_second=200, memory_mib=0.4 * MIB_OF_GB)),
)
"""The CPU's table. A bar that was set without saying for which direction holds for both."""


def cases_of(device: torch.device) -> tuple[Case, ...]:
    """The CPU's registry; on a GPU the same ops, forward and training, in batches of 64, 128 and 256, without bars."""
    if device.type == "cpu":
        return CASES
    ops = {case.op.name: case for case in CASES}.values()
    return tuple(
        replace(case, batch=batch, training=training, bars=Bars())
        for case in ops
        for batch in (64, 128, 256)
        for training in (False, True)
    )


def select(cases: tuple[Case, ...], pattern: str) -> tuple[Case, ...]:
    """Those whose name matches a shell pattern, or begins with it.

    Raises:
        ValueError: no case does.
    """
    chosen = tuple(case for case in cases if fnmatch.fnmatch(case.name, pattern) or case.name.startswith(pattern))
    if not chosen:
        raise unknown_name("pattern", pattern, [case.name for case in cases])
    return chosen
