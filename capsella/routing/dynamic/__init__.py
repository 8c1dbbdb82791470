"""Dynamic routing between capsules (Sabour, Frosst, Hinton 2017, arXiv 1710.09829, Procedure 1)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import FUSED, Backend, choose_backend, choose_conv_backend
from capsella.routing.base import Routed, Routing, register_routing
from capsella.routing.checks import check_iterations, check_shape, check_votes
from capsella.routing.convolution import CapsuleConv
from capsella.routing.dynamic.eager import dynamic_routing_eager
from capsella.routing.dynamic.reference import dynamic_routing_reference
from capsella.routing.dynamic.tied import dynamic_capsule_conv_tied
from capsella.types import Capsules

BACKENDS = {"eager": dynamic_routing_eager, "reference": dynamic_routing_reference}
SLOWER = "dynamic routing runs in PyTorch, 3 to 10 times slower"
SLOWER_TIED = "dynamic routing with tied weights runs in PyTorch, 1.5 to 3 times slower"
"""What layers without kernels are told; the times are in docs/reference/speed.md."""


def dynamic_routing(
    votes: Float[Tensor, "b i j d"],
    iterations: int = 3,
    *,
    bias: Float[Tensor, "j d"] | None = None,
    leaky: bool = False,
    backend: str = "auto",
) -> Routed:
    """Route votes by agreement (Sabour et al. 2017, Procedure 1).

    Args:
        votes: [b i j d], child i's prediction û of parent j's pose.
        iterations: routing iterations, at least 1; with one, every coupling is 1/j.
        bias: [j d], added to s_j before the squash (in the authors' code, not in the paper).
        leaky: let a child that fits nowhere leak to a parent that is dropped; couplings then sum to less than 1
            (in the authors' code, not in the paper).
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        poses v [b j d], activations ‖v‖ [b j], couplings [b i j] of the last iteration.

    Raises:
        ValueError: votes without the four axes, `iterations` < 1, a bias of another shape, an unknown backend.

    >>> import torch
    >>> routed = dynamic_routing(torch.randn(2, 5, 3, 8))
    >>> routed.poses.shape, routed.couplings.sum(2).allclose(torch.ones(2, 5))
    (torch.Size([2, 3, 8]), True)
    """
    check_votes(votes)
    check_iterations(iterations)
    if bias is not None:
        check_shape("bias", bias, tuple(votes.shape[2:]), "[j d]")
    return BACKENDS[choose_backend(backend, BACKENDS, auto="eager")](votes, iterations, bias, leaky)


@register_routing
@dataclass(frozen=True)
class DynamicRouting(Routing):
    """Options of `dynamic_routing` for a capsule layer."""

    name: ClassVar[str] = "dynamic"
    fused: ClassVar[tuple[str, ...]] = FUSED

    iterations: int = 3
    """Routing iterations; Sabour et al. 2017 use 3, and 1 for comparison."""
    bias: bool = False
    """Learn a bias per parent, from 0, added before the squash (authors' code, from 0.1)."""
    leaky: bool = False
    """Let children leak to a parent that is dropped (authors' code)."""
    backend: Backend = "auto"
    """Which implementation runs."""

    def __post_init__(self) -> None:
        check_iterations(self.iterations)

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """A bias [j d] where asked for."""
        return {"bias": (types, pose)} if self.bias else {}

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """`dynamic_routing`; the children's activations are the lengths of their poses, so they are not used."""
        return dynamic_routing(
            votes, self.iterations, bias=parameters.get("bias"), leaky=self.leaky, backend=self.backend
        )

    def capsule_conv(self, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """Route every window of the grid.

        A tied layer needs no votes, in tied.py on every device as in the native kernels, which take no `vote_offset`
        for it.
        """
        offset_of_tied = conv.geometry.tied and conv.vote_offset is not None
        no_native = "its tied layers take no vote_offset" if offset_of_tied else None
        slower = SLOWER_TIED if conv.geometry.tied else SLOWER
        backend = choose_conv_backend(self.backend, (*BACKENDS, *self.fused), conv, slower, no_native)
        if (bias := parameters.get("bias")) is not None:
            check_shape("bias", bias, (conv.sizes.c_out, conv.sizes.d), "[j d]")
        if backend == "reference" or (backend == "eager" and not conv.geometry.tied):
            return Routing.capsule_conv(replace(self, backend=backend), conv, **parameters)
        if backend == "triton":
            from capsella.routing.dynamic.triton import dynamic_capsule_conv_triton as run
        elif backend == "native":
            from capsella.routing.dynamic.native import dynamic_capsule_conv_native as run
        else:
            run = dynamic_capsule_conv_tied
        return run(conv, self.iterations, bias, self.leaky)
