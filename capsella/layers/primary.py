"""Primary capsules: the layers that turn feature maps into the first capsules."""

from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, check_argument, check_minimum
from capsella.layers.fast_convolution import FastConv2d, fast_conv2d
from capsella.layers.norms import NormaliseCapsules, ParentNorm, he_init_, trunc_normal_init_
from capsella.routing import length, squash, squash_exponential
from capsella.types import CapsuleLogits, Capsules, at_least_float32


class PrimaryCapsules(nn.Module):
    """A convolution whose output channels are cut into `types` capsules of `pose` elements, each squashed.

    Sabour et al. 2017, section 4: 32 types, 8-D, kernel 9×9, stride 2. Channel t·pose + k is element k of type t, so a
    capsule never mixes positions. `activation="relu"` applies a ReLU before the squash (Forslöv 2018, §6.1.1); the
    paper, and the default here, do not.

    `uniform_couplings=True` is the layer of the authors' code, which the paper does not mention: the features are one
    child, routed once to `types` parents, so that every vote counts 1/types before the bias is added. An optimizer step
    then moves a capsule `types` times less. Otherwise, on pairs of digits, the paper's learning rate lengthens all
    class capsules to 1 within ten steps, and the squash saturates. The initial weights are the authors', too.

    Shapes: [b in_channels height width] → Capsules(poses [b h w types pose], activations ‖pose‖ [b h w types]).
    """

    coupling: Tensor | None

    def __init__(
        self,
        in_channels: int,
        types: int,
        pose: int,
        kernel: int = 9,
        stride: int = 2,
        activation: Literal["none", "relu"] = "none",
        *,
        uniform_couplings: bool = False,
    ) -> None:
        super().__init__()
        check_minimum(1, types=types, pose=pose)
        check_argument(activation in ("none", "relu"), "be 'none' or 'relu'", activation=activation)
        self.types, self.pose = types, pose
        self.conv: nn.Conv2d = FastConv2d(in_channels, types * pose, kernel, stride)
        if uniform_couplings:
            trunc_normal_init_(self.conv, 0.1)
        # Saved with the weights, so that weights with and without uniform couplings are not mixed up on loading.
        self.register_buffer("coupling", torch.tensor(1 / types) if uniform_couplings else None)
        self.activation = nn.ReLU() if activation == "relu" else nn.Identity()

    def forward(self, features: Float[Tensor, "b in_channels height width"]) -> Capsules:
        """Turn feature maps into squashed capsules."""
        maps = self.activation(self._maps(features))
        # [b (types pose) h w] → [b h w types pose]
        u = squash(at_least_float32(maps).unflatten(1, (self.types, self.pose)).permute(0, 3, 4, 1, 2))
        return Capsules(u, length(u))

    def _maps(self, features: Tensor) -> Tensor:
        if self.coupling is None:
            maps: Tensor = self.conv(features)
            return maps
        votes = fast_conv2d(features, self.conv.weight, None, self.conv.stride[0])
        return votes * self.coupling + cast(Tensor, self.conv.bias)[:, None, None]


class DepthwisePrimaryCapsules(nn.Module):
    """A depthwise convolution over the whole grid, which turns each feature map into one element of a capsule.

    Mazzia et al. 2021, section 3.1: 128 maps of 9×9 → 16 types, 8-D, by a depthwise 9×9 kernel. Channel t·pose + k is
    element k of type t; the capsules are squashed by `squash_exponential`. The initial weights are Glorot's, as in the
    authors' code.

    Shapes: [b types·pose rows columns] → Capsules(poses [b 1 1 types pose], activations ‖pose‖ [b 1 1 types]).

    Args:
        types: capsule types.
        pose: pose elements of each.
        grid: rows and columns of the feature maps.
        kernel: rows and columns of the kernel, which reads the top left of the maps; None for the whole grid. The
            authors' network for pairs of digits has a kernel of 5×5 on maps of 6×6.
    """

    def __init__(self, types: int, pose: int, grid: tuple[int, int], kernel: int | None = None) -> None:
        super().__init__()
        self.types, self.pose, self.grid = types, pose, (grid[0], grid[1])
        self.kernel = self.grid if kernel is None else (kernel, kernel)
        self.conv = nn.Conv2d(types * pose, types * pose, self.kernel, groups=types * pose)
        nn.init.xavier_uniform_(self.conv.weight)
        nn.init.zeros_(cast(Tensor, self.conv.bias))

    def forward(self, features: Float[Tensor, "b channels rows columns"]) -> Capsules:
        """Turn feature maps into squashed capsules.

        Raises:
            ValueError: maps of another size than `grid`, which would give capsules at several places.
        """
        came = tuple(features.shape[2:])
        if came != self.grid:
            raise ArgumentError("features", f"be maps of {self.grid[0]}×{self.grid[1]}", "×".join(map(str, came)))
        if self.kernel != self.grid:
            features = features[..., : self.kernel[0], : self.kernel[1]]
        if self.training:  # the same sums, whose gradients take half the time of a depthwise convolution's on a CPU
            weight = self.conv.weight[:, 0].permute(1, 2, 0).contiguous()  # [rows columns channels]
            sums = (features.permute(0, 2, 3, 1) * weight).sum((1, 2)) + cast(Tensor, self.conv.bias)
            maps = sums[:, :, None, None]
        else:
            maps = self.conv(features)
        maps = at_least_float32(maps)  # [b (types pose) 1 1]
        u = squash_exponential(maps.unflatten(1, (self.types, self.pose)).permute(0, 3, 4, 1, 2))
        return Capsules(u, length(u))


class MatrixPrimaryCapsules(nn.Module):
    """One convolution that makes poses, without an activation function, and activations, through a sigmoid.

    Hinton et al. 2018, section 4: kernel 1×1, 32 types, 4×4 poses. Channel t·pose + k of the first types·pose channels
    is element k of type t; the last `types` channels are the activations.

    With `norm="batch"` poses and activations are normalised by type before the sigmoid, with a scale and a shift, as in
    Ribeiro et al. 2020; the convolution then has no bias.

    Shapes: [b in_channels height width] → Capsules(poses [b h w types pose], activations [b h w types]).
    """

    def __init__(
        self,
        in_channels: int,
        types: int,
        pose: int = 16,
        *,
        norm: ParentNorm | None = None,
    ) -> None:
        super().__init__()
        self.types, self.pose = types, pose
        self.conv = nn.Conv2d(in_channels, types * (pose + 1), 1, bias=norm is None)
        self.norm = None if norm is None else NormaliseCapsules(types, affine=True)

    def forward(self, features: Float[Tensor, "b in_channels height width"]) -> Capsules:
        """Turn feature maps into poses and activations."""
        capsules = _matrix_capsules(self.conv(features), self.types, self.pose)
        return (capsules if self.norm is None else self.norm(capsules)).capsules()


def _matrix_capsules(maps: Tensor, types: int, pose: int) -> CapsuleLogits:
    """Cut maps [b (types pose | types) h w] into poses and log-odds."""
    poses, logits = at_least_float32(maps).permute(0, 2, 3, 1).split([types * pose, types], dim=3)
    return CapsuleLogits(poses.unflatten(3, (types, pose)), logits)


class NormalisedPrimaryCapsules(nn.Module):
    """`MatrixPrimaryCapsules` with batch normalisation in place of the biases (Hahn et al. 2019, their code).

    Shapes: [b in_channels height width] → Capsules(poses [b height width types pose], activations [b height width
    types]).

    Args:
        in_channels: number of feature maps.
        types: capsule types.
        pose: pose elements of each.
        kernel: rows and columns of the kernel, an odd number; zero padding keeps the grid as large as the maps.
    """

    def __init__(self, in_channels: int, types: int, pose: int, kernel: int = 3) -> None:
        super().__init__()
        check_argument(kernel % 2 == 1, "be an odd number", kernel=kernel)
        self.types, self.pose = types, pose
        width = types * (pose + 1)
        conv = nn.Conv2d(in_channels, width, kernel, padding=kernel // 2, bias=False)
        self.maps = nn.Sequential(conv, nn.BatchNorm2d(width))
        he_init_(self)

    def forward(self, features: Float[Tensor, "b in_channels height width"]) -> Capsules:
        """Turn feature maps into poses and activations."""
        return _matrix_capsules(self.maps(features), self.types, self.pose).capsules()


class LayerNormPrimaryCapsules(nn.Module):
    """A 1×1 convolution cut into poses, each layer-normalised over its elements (Tsai et al. 2020).

    Scale and shift are shared by all types. There are no activations: all are 1.

    Shapes: [b in_channels height width] → Capsules(poses [b h w types pose], activations [b h w types]).
    """

    def __init__(self, in_channels: int, types: int, pose: int) -> None:
        super().__init__()
        self.types, self.pose = types, pose
        self.conv = nn.Conv2d(in_channels, types * pose, 1, bias=False)
        self.norm = nn.LayerNorm(pose)

    def forward(self, features: Float[Tensor, "b in_channels height width"]) -> Capsules:
        """Turn feature maps into normalised poses."""
        maps = self.conv(features).to(self.norm.weight.dtype).permute(0, 2, 3, 1)  # [b h w (types pose)]
        poses = self.norm(maps.unflatten(3, (self.types, self.pose)))
        return Capsules(poses, torch.ones_like(poses[..., 0]))
