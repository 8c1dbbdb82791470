"""Couplings that are the same for all images and sites: Σ_i c (u·W) = Σ_i u·(c W), so no vote need be made."""

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.routing.base import Routed
from capsella.routing.convolution import CapsuleConv, gather_windows
from capsella.routing.recording import new_trace
from capsella.routing.squash import length, squash
from capsella.types import Capsules


def squashed_sums(name: str, s: Float[Tensor, "b j d"], couplings: Float[Tensor, "b i j"]) -> Routed:
    """The parents of the sums Σ_i c V, recorded under the name of their routing."""
    v = squash(s)
    activations = length(v)
    new_trace(name).add(couplings, v, activations)
    return Routed(v, activations, couplings)


def fixed_capsule_conv(name: str, conv: CapsuleConv, couplings: Float[Tensor, "i j"]) -> Capsules:
    """The parents of every window by these couplings."""
    routed = squashed_sums(name, fixed_sums(conv, couplings), couplings.expand(conv.sizes.n, -1, -1))
    return conv.parents(routed.poses, routed.activations)


def fixed_sums(conv: CapsuleConv, couplings: Float[Tensor, "i j"]) -> Float[Tensor, "n j d"]:
    """Σ_i c_ij V_ij of every window: couplings are multiplied into the weights, and one product of matrices is left."""
    sizes = conv.sizes
    W = conv.weight.reshape(-1, sizes.c_in, sizes.c_out, sizes.q, sizes.e).expand(sizes.k, -1, -1, -1, -1)
    W = W.flatten(0, 1) * couplings[:, :, None, None]  # [i j q e]
    u = gather_windows(conv.poses, conv.geometry).reshape(sizes.n, sizes.i, sizes.r, sizes.q)
    u = u.transpose(1, 2).reshape(sizes.n * sizes.r, sizes.i * sizes.q)
    s = u @ W.transpose(1, 2).reshape(sizes.i * sizes.q, sizes.c_out * sizes.e)
    s = s.reshape(sizes.n, sizes.r, sizes.c_out, sizes.e).transpose(1, 2).reshape(sizes.n, sizes.c_out, sizes.d)
    if conv.vote_offset is None:
        return s
    offsets = gather_windows(conv.vote_offset[None], conv.geometry).reshape(-1, sizes.k, sizes.d)  # [sites k d]
    by_slot = couplings.unflatten(0, (sizes.k, sizes.c_in)).sum(1)  # all types of a position share its offset
    added = torch.einsum("kj,skd->sjd", by_slot, offsets)
    return (s.unflatten(0, (sizes.batch, sizes.rows * sizes.columns)) + added).flatten(0, 1)
