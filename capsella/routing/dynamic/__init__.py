"""Dynamic routing between capsules (Sabour, Frosst, Hinton 2017, arXiv 1710.09829, Procedure 1)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import FUSED, Backend, choose_backend, choose_conv_backend
from capsella.routing.base import Routed, Routing, register_routing
from capsella.routing.checks import check_iterations, check_shape, check_votes
from capsella.routing.convolution import Geometry, check_capsule_conv
from capsella.routing.dynamic.eager import dynamic_routing_eager
from capsella.routing.dynamic.reference import dynamic_routing_reference
from capsella.routing.dynamic.tied import dynamic_capsule_conv_tied
from capsella.types import Capsules

BACKENDS = {"eager": dynamic_routing_eager, "reference": dynamic_routing_reference}


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

    iterations: int = 3
    """Routing iterations; Sabour et al. 2017 use 3, and 1 for comparison."""
    bias: bool = False
    """Learn a bias per parent, added before the squash (authors' code)."""
    leaky: bool = False
    """Let children leak to a parent that is dropped (authors' code)."""
    backend: Backend = "auto"
    """Which implementation runs."""

    def __post_init__(self) -> None:
        check_iterations(self.iterations)

    def parameter_shapes(self, types: int, pose: int, children: int) -> dict[str, tuple[int, ...]]:
        """A bias [j d] where asked for."""
        return {"bias": (types, pose)} if self.bias else {}

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """`dynamic_routing`; the children's activations are the lengths of their poses, so they are not used."""
        return dynamic_routing(
            votes, self.iterations, bias=parameters.get("bias"), leaky=self.leaky, backend=self.backend
        )

    def capsule_conv(
        self,
        poses: Float[Tensor, "b h w c_in p"],
        activations: Float[Tensor, "b h w c_in"],
        weight: Float[Tensor, "kh kw c_in c_out q d"],
        geometry: Geometry,
        vote_offset: Float[Tensor, "h w d_out"] | None = None,
        **parameters: Tensor,
    ) -> Capsules:
        """Route every window of the grid.

        A tied layer needs no votes, in tied.py on every device as in the native kernels, which take no `vote_offset`
        for it.
        """
        offset_of_tied = geometry.tied and vote_offset is not None
        no_native = "its tied layers take no vote_offset" if offset_of_tied else None
        backend = choose_conv_backend(self.backend, (*BACKENDS, *FUSED), poses, weight, vote_offset, no_native)
        bias = parameters.get("bias")
        if backend == "triton":
            from capsella.routing.dynamic.triton import dynamic_capsule_conv_triton

            return dynamic_capsule_conv_triton(poses, activations, weight, geometry, vote_offset, bias, self)
        if backend == "reference" or (backend == "eager" and not geometry.tied):
            with_votes = replace(self, backend=backend)
            return Routing.capsule_conv(with_votes, poses, activations, weight, geometry, vote_offset, **parameters)
        grid = check_capsule_conv(poses, activations, weight, geometry, vote_offset)
        if bias is not None:
            check_shape("bias", bias, grid[3:], "[j d]")
        if backend == "native":
            from capsella.routing.dynamic.native import dynamic_capsule_conv_native as run
        else:
            run = dynamic_capsule_conv_tied
        return run(poses, weight, geometry, vote_offset, self.iterations, bias, self.leaky)
