"""Random changes that another microscope, stain or camera makes, on a batch of RGB images in [0, 1]."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from capsella.errors import CapsellaError

# Haematoxylin, eosin and DAB: optical density in red, green and blue (Ruifrok and Johnston 2001).
STAINS = ((0.650, 0.704, 0.286), (0.072, 0.990, 0.105), (0.268, 0.570, 0.776))
DARKEST = 1 / 255
COLOUR_SHARE = 0.3
"""A stain's colour changes by this share of what its amount does."""


class StainJitter(nn.Module):
    """Change amounts and colours of two stains, in optical density; what is white stays white (Tellez et al. 2018).

    A pixel x has the optical density −ln x, a sum of the stains' colours. Each stain's amount is multiplied by a number
    from 1 − strength to 1 + strength, the same in a whole image; the third, the rest, keeps its own.
    """

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength
        stains = torch.tensor(STAINS)
        self.register_buffer("stains", stains / torch.linalg.vector_norm(stains, dim=1, keepdim=True), persistent=False)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Change each image."""
        if images.shape[1] != 3:
            raise CapsellaError(f"stain: must be 0 for images that are not RGB, got {images.shape[1]} channels")
        batch, stains = len(images), torch.as_tensor(self.stains)
        density = -images.clamp(min=DARKEST).log()
        amounts = torch.einsum("bchw,cs->bshw", density, torch.linalg.inv(stains))
        factors = 1 + self.strength * _even(batch, 3, like=images)
        factors[:, 2] = 1
        colours = stains + COLOUR_SHARE * self.strength * _even(batch, 3, 3, like=images)
        changed = torch.einsum("bshw,bs,bsc->bchw", amounts, factors, colours)
        return (-changed).exp().clamp(0, 1)


class Light(nn.Module):
    """White balance: each colour times a number; and gamma: all to a power. Both e to the power of an even draw."""

    def __init__(self, white_balance: float, gamma: float) -> None:
        super().__init__()
        self.white_balance, self.gamma = white_balance, gamma

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Change each image."""
        batch, channels = images.shape[:2]
        factors = (self.white_balance * _even(batch, channels, 1, 1, like=images)).exp()
        powers = (self.gamma * _even(batch, 1, 1, 1, like=images)).exp()
        return (images * factors).clamp(0, 1) ** powers


class Zoom(nn.Module):
    """Magnify or shrink each image by up to a factor, evenly on a logarithmic scale; the border's pixels are repeated.

    Shrunk images are sampled bilinearly without a filter before: by 2, every second pixel and its neighbour count.
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Change each image."""
        scale = (math.log(self.factor) * _even(len(images), like=images)).exp()
        zero = torch.zeros_like(scale)
        rows = torch.stack([torch.stack([1 / scale, zero, zero], 1), torch.stack([zero, 1 / scale, zero], 1)], 1)
        grid = functional.affine_grid(rows, list(images.shape), align_corners=False)
        return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


class Camera(nn.Module):
    """Take an image with fewer pixels, save it as JPEG with chroma at half the resolution, and enlarge it again.

    A batch is shrunk by one factor from 1 to `coarse`, evenly on a logarithmic scale; each image has a quality of its
    own, evenly from `jpeg` to 100. Half of the batches stay as they are.
    """

    def __init__(self, coarse: float, jpeg: int) -> None:
        super().__init__()
        self.coarse, self.jpeg = coarse, jpeg

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Change the images."""
        if self.jpeg < 100 and images.shape[1] not in (1, 3):
            raise CapsellaError(f"jpeg: only for images that are grey or in colour, got {images.shape[1]} channels")
        share, half = torch.rand(2).tolist()
        if half < 0.5:
            return images
        size = images.shape[2:]
        fewer = [max(8, round(side / self.coarse**share)) for side in size]
        taken = functional.interpolate(images, fewer, mode="bilinear", antialias=True, align_corners=False)
        if self.jpeg < 100:
            taken = self._saved(taken)
        return functional.interpolate(taken, size, mode="bicubic", align_corners=False).clamp(0, 1)

    def _saved(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        from kornia.enhance import jpeg_codec_differentiable  # over a second to import

        quality = self.jpeg + (100 - self.jpeg) * torch.rand(len(images), device=images.device)
        rgb = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
        saved: Tensor = jpeg_codec_differentiable(rgb.clamp(0, 1), quality.clamp(max=99))
        return saved[:, :1] if images.shape[1] == 1 else saved


class Focus(nn.Module):
    """Blur each image by a Gaussian of standard deviation up to `blur` pixels, then add noise of one up to `noise`."""

    def __init__(self, blur: float, noise: float) -> None:
        super().__init__()
        self.blur, self.noise = blur, noise

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Change each image."""
        if self.blur:
            images = self._blurred(images)
        if self.noise:
            sd = self.noise * torch.rand(len(images), 1, 1, 1, device=images.device, dtype=images.dtype)
            images = (images + sd * torch.randn_like(images)).clamp(0, 1)
        return images

    def _blurred(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        batch, channels, height, width = images.shape
        reach = max(1, math.ceil(3 * self.blur))
        sd = (self.blur * torch.rand(batch, device=images.device, dtype=images.dtype)).clamp(min=1e-3)
        places = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
        kernels = torch.softmax(-(places**2) / (2 * sd[:, None] ** 2), 1).repeat_interleave(channels, 0)  # [b·c k]
        padded = functional.pad(images, (reach,) * 4, mode="replicate").flatten(0, 1)[None]
        rows = functional.conv2d(padded, kernels[:, None, :, None], groups=batch * channels)
        both = functional.conv2d(rows, kernels[:, None, None, :], groups=batch * channels)
        return both.reshape(batch, channels, height, width)


def _even(*shape: int, like: Tensor) -> Tensor:
    """Numbers drawn evenly from −1 to 1."""
    return 2 * torch.rand(shape, device=like.device, dtype=like.dtype) - 1
