"""Capsule layers of cluster routing (Zhao, Cheng 2021): each child type casts several votes for each parent."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import check_argument, check_minimum
from capsella.routing.backends import choose_backend
from capsella.routing.cluster import BACKENDS, cluster_routing
from capsella.routing.functional import checkpointed_in_chunks
from capsella.types import Capsules, check_children


class PixelCapsules(nn.Module):
    """Images as capsules, for a capsule layer to read: `types` capsules per pixel, all with its channels as their pose.

    Shapes: [b channels h w] → Capsules(poses [b h w types channels], activations [b h w types], all 1).
    """

    def __init__(self, types: int) -> None:
        super().__init__()
        check_minimum(1, types=types)
        self.types = types

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Return views of the images; nothing is copied."""
        poses = images.permute(0, 2, 3, 1).unsqueeze(3).expand(-1, -1, -1, self.types, -1)
        return Capsules(poses, torch.ones_like(poses[..., 0]))


class ClusterCapsules(nn.Module):
    """A capsule layer of cluster routing: votes by convolution, `cluster_routing`, and layer normalisation.

    A convolution of each child type's pose elements over the kernel window makes that type's votes at a site. The layer
    normalisation is over all elements and sites of a parent type; scale and shift are shared by the types. There are no
    activations: all are 1. Children compete for a parent, element by element, so there are no couplings to record.

    Shapes: Capsules(poses [b h w types_in pose_in], activations [b h w types_in])
    → Capsules(poses [b h' w' types_out pose_out], activations [b h' w' types_out]), h' = ⌈h/stride⌉, w' = ⌈w/stride⌉;
    with `whole`, poses [b 1 1 types_out pose_out·h'·w'].

    Args:
        types_in: capsule types of the layer below.
        pose_in: pose elements of each child.
        types_out: capsule types of this layer.
        pose_out: pose elements of each parent, at a site.
        votes: number of votes of a child type for a parent type at a site, at least 2.
        grid: rows and columns h'×w' of this layer's sites.
        kernel: rows and columns of a window, an odd number; the children's grid is padded with zeros.
        stride: rows and columns between windows.
        whole: join all sites of a type into one capsule, e.g. for classes.
        backend: backend of `cluster_routing`; "eager" for second derivatives.

    Raises:
        ValueError: a size below 1, votes below 2, an even kernel, an unknown backend.
    """

    def __init__(
        self,
        types_in: int,
        pose_in: int,
        types_out: int,
        pose_out: int,
        votes: int,
        grid: tuple[int, int],
        *,
        kernel: int = 3,
        stride: int = 1,
        whole: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_minimum(1, types_in=types_in, pose_in=pose_in, types_out=types_out, pose_out=pose_out, stride=stride)
        check_minimum(2, votes=votes)
        check_argument(kernel % 2 == 1, "be an odd number", kernel=kernel)
        choose_backend(backend, BACKENDS, auto="auto")
        self.types_in, self.pose_in, self.types_out, self.pose_out = types_in, pose_in, types_out, pose_out
        self.votes = votes
        self.whole, self.backend = whole, backend
        self.conv = nn.Conv2d(
            types_in * pose_in,
            types_in * votes * types_out * pose_out,
            kernel,
            stride,
            padding=kernel // 2,
            groups=types_in,
        )
        self.norm = nn.LayerNorm((pose_out, *grid))

    def forward(self, children: Capsules) -> Capsules:
        """Make, route and normalise the votes; after the convolution at least in float32."""
        votes_of_a_parent = self.types_in * self.votes
        return checkpointed_in_chunks(
            self._route, children, votes_of_a_parent * self.types_out * self.norm.weight.numel()
        )

    def _route(self, children: Capsules) -> Capsules:
        votes = self.cast_votes(children)
        with torch.autocast(votes.device.type, enabled=False):
            poses = cluster_routing(votes.flatten(4), backend=self.backend).poses.unflatten(2, votes.shape[4:])
            poses = cast(Tensor, self.norm(poses.to(self.norm.weight.dtype)))
        poses = poses.flatten(2)[:, None, None] if self.whole else poses.permute(0, 3, 4, 1, 2)
        return Capsules(poses, torch.ones_like(poses[..., 0]))

    def cast_votes(self, children: Capsules) -> Float[Tensor, "b g i j d rows columns"]:
        """Return the votes of each child type's cluster [g], for every pose element [d] and site.

        Raises:
            ValueError: children of other types or pose elements.
        """
        check_children(children, self.types_in, self.pose_in)
        # Contiguous, so that the votes are contiguous too; otherwise the kernels would copy them.
        poses = children.poses.permute(0, 3, 4, 1, 2).flatten(1, 2).contiguous()
        maps: Tensor = self.conv(poses.to(self.conv.weight.dtype))  # [b (i g j d) h' w']
        votes = maps.unflatten(1, (self.types_in, self.votes, self.types_out, self.pose_out))
        return votes.transpose(1, 2)
