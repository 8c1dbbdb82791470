"""Augmentation of a batch of training images, on the device of the batch.

Most steps are kornia's; this module adds those whose distributions kornia lacks. Each takes images [b c h w] in [0, 1]
and draws from PyTorch's global generator.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from capsella.errors import ArgumentError, CapsellaError
from capsella.training.config import AugmentOptions

Images = Float[Tensor, "b c h w"]
# Half a grey level: anything darker is the rounding error of a resampling, and counts as black.
BLACK_BELOW = 0.5 / 255
DARKEST = 1 / 255
# Haematoxylin, eosin and DAB: optical density in red, green and blue (Ruifrok and Johnston 2001).
STAINS = ((0.650, 0.704, 0.286), (0.072, 0.990, 0.105), (0.268, 0.570, 0.776))
# A stain's colour changes by up to this fraction of the largest relative change of its amount.
COLOUR_SHARE = 0.3


class Augment(nn.Module):
    """The augmentation that `AugmentOptions` describe; images keep their shape."""

    def __init__(self, options: AugmentOptions, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.steps = nn.Sequential(
            *_geometric(options, image_size), *_photometric(options), *_erasing(options, image_size)
        )

    def forward(self, images: Images) -> Images:
        """Return augmented images; if every option is off, the input itself."""
        changed: Tensor = self.steps(images)
        return changed


def _geometric(options: AugmentOptions, image_size: tuple[int, int]) -> list[nn.Module]:
    import kornia.augmentation as K  # takes over a second to import

    steps: list[nn.Module] = []
    if options.flip:
        steps += [K.RandomHorizontalFlip(p=0.5), K.RandomVerticalFlip(p=0.5)]
    if options.mirror:
        steps.append(K.RandomHorizontalFlip(p=0.5))
    if options.rotation or options.stretch:
        scale = (1 - options.stretch, 1 + options.stretch) * 2
        steps.append(K.RandomAffine(options.rotation, scale=scale, padding_mode="border", align_corners=True, p=1.0))
    if options.rotation_sd or options.narrow:
        steps.append(RandomNormalRotation(options.rotation_sd, options.narrow))
    if options.shift:
        # Padding by the shift and cropping back moves by whole pixels, so nothing is blurred.
        mode = {"zeros": "constant", "border": "replicate"}[options.padding_mode]
        steps.append(K.RandomCrop(image_size, padding=options.shift, padding_mode=mode, cropping_mode="slice"))
    if options.margin_shift:
        steps.append(RandomMarginShift())
    return steps


def _photometric(options: AugmentOptions) -> list[nn.Module]:
    """Return the steps that imitate another microscope, stain or camera."""
    steps: list[nn.Module] = []
    if options.zoom > 1:
        steps.append(RandomZoom(options.zoom))
    if options.stain:
        steps.append(RandomStain(options.stain))
    if options.white_balance or options.gamma:
        steps.append(RandomGamma(options.gamma, options.white_balance))
    if options.blur or options.noise:
        steps.append(RandomBlurNoise(options.blur, options.noise))
    if options.downscale > 1 or options.jpeg < 100:
        steps.append(RandomDownscaleJpeg(options.downscale, options.jpeg))
    keep = options.microscope_keep_prob
    return [RandomApply(steps, 1 - keep)] if steps and keep else steps


def _erasing(options: AugmentOptions, image_size: tuple[int, int]) -> list[nn.Module]:
    if 3 * options.erase > min(image_size):
        size = f"{image_size[0]}×{image_size[1]}"
        raise ArgumentError("erase", f"be at most a third of the image's {size}", options.erase)
    return [RandomErasing(options.erase)] if options.erase else []


class RandomApply(nn.Module):
    """Apply steps to each image with probability `p`."""

    def __init__(self, steps: list[nn.Module], p: float) -> None:
        super().__init__()
        self.steps, self.p = nn.Sequential(*steps), p

    def forward(self, images: Images) -> Images:
        """Change some images."""
        keep = torch.rand(len(images), 1, 1, 1, device=images.device) < 1 - self.p
        return torch.where(keep, images, self.steps(images))


class RandomNormalRotation(nn.Module):
    """Rotate half of the images by normally distributed angles and narrow all of them; what moves in is black.

    This follows the authors' code of Mazzia et al. 2021, but resamples once instead of twice. Angles are clipped at
    three standard deviations. Each width shrinks by a half-normally distributed fraction below `narrow`.
    """

    def __init__(self, degrees_sd: float, narrow: float) -> None:
        super().__init__()
        self.degrees_sd, self.narrow = degrees_sd, narrow

    def forward(self, images: Images) -> Images:
        """Change each image."""
        batch, _, height, width = images.shape
        is_rotated = torch.rand(batch, device=images.device) < 0.5
        degrees = self.degrees_sd * torch.randn(batch, device=images.device).clamp(-3, 3)
        angle = torch.deg2rad(degrees) * is_rotated
        factor = 1 / (1 - self.narrow * _half_normal(batch, images.device))
        # Map positions in the new image to positions in the old one; coordinates run from −1 to 1 along each axis.
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        x = torch.stack([cos * factor, -sin * (height / width), zero], 1)
        y = torch.stack([sin * factor * (width / height), cos, zero], 1)
        return _resample(images, torch.stack([x, y], 1), "zeros")


class RandomMarginShift(nn.Module):
    """Shift the non-black content by whole pixels within its black margins, along each axis in a random direction.

    The shift is a half-normally distributed fraction of the margin (σ = 1/3, below 1), as in the authors' code of
    Mazzia et al. 2021. A black image stays as it is.
    """

    def forward(self, images: Images) -> Images:
        """Move each image."""
        lit = (images > BLACK_BELOW).any(1)  # [b h w]
        rows, columns = (self._sources(lit.any(axis)) for axis in (2, 1))
        b = torch.arange(len(images), device=images.device)
        return images[b[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    def _sources(self, lit: Tensor) -> Tensor:
        """Return the source index [b n] of each row or column after the shift; `lit` [b n] marks those not black."""
        batch, n = lit.shape
        before = lit.int().argmax(1)
        after = lit.flip(1).int().argmax(1)
        forward = torch.rand(batch, device=lit.device) < 0.5
        margin = torch.where(forward, after, before)
        steps = (_half_normal(batch, lit.device) * (margin + 1)).floor().long()
        steps = torch.where(forward, steps, -steps) * lit.any(1)
        return (torch.arange(n, device=lit.device) - steps[:, None]) % n  # what wraps around is black


class RandomErasing(nn.Module):
    """Black out a square of `side` pixels at a random place, at least `side` from the border (Mazzia et al. 2021)."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Images) -> Images:
        """Black out a part of each image."""
        batch, _, height, width = images.shape
        rows, columns = (self._covered(batch, n, images.device) for n in (height, width))
        return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)

    def _covered(self, batch: int, n: int, device: torch.device) -> Tensor:
        """Return a mask [b n] of the rows or columns that each image's square covers."""
        first = self.side + torch.randint(n - 3 * self.side + 1, (batch, 1), device=device)
        places = torch.arange(n, device=device)
        return (places >= first) & (places < first + self.side)


class RandomStain(nn.Module):
    """Change amounts and colours of two stains, in optical density; white stays white (Tellez et al. 2018).

    A pixel x has the optical density −ln x, a sum of the stains' colours. Each stain's amount is multiplied by a number
    from 1 − strength to 1 + strength, one per image; the residual component keeps its amount.
    """

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength
        stains = torch.tensor(STAINS)
        self.register_buffer("stains", stains / torch.linalg.vector_norm(stains, dim=1, keepdim=True), persistent=False)

    def forward(self, images: Images) -> Images:
        """Change each image."""
        if images.shape[1] != 3:
            raise CapsellaError(f"stain: must be 0 for images that are not RGB, got {images.shape[1]} channels")
        batch, stains = len(images), torch.as_tensor(self.stains)
        density = -images.clamp(min=DARKEST).log()
        amounts = torch.einsum("bchw,cs->bshw", density, torch.linalg.inv(stains))
        factors = 1 + self.strength * _uniform(batch, 3, like=images)
        factors[:, 2] = 1
        colours = stains + COLOUR_SHARE * self.strength * _uniform(batch, 3, 3, like=images)
        changed = torch.einsum("bshw,bs,bsc->bchw", amounts, factors, colours)
        return (-changed).exp().clamp(0, 1)


class RandomGamma(nn.Module):
    """Multiply each channel by a log-uniform factor (white balance), then raise all to a log-uniform power (gamma)."""

    def __init__(self, gamma: float, white_balance: float) -> None:
        super().__init__()
        self.gamma, self.white_balance = gamma, white_balance

    def forward(self, images: Images) -> Images:
        """Change each image."""
        batch, channels = images.shape[:2]
        factors = (self.white_balance * _uniform(batch, channels, 1, 1, like=images)).exp()
        powers = (self.gamma * _uniform(batch, 1, 1, 1, like=images)).exp()
        return (images * factors).clamp(0, 1) ** powers


class RandomZoom(nn.Module):
    """Magnify or shrink each image by a log-uniform factor up to `factor`; the border's pixels are repeated.

    Shrunk images are sampled bilinearly without antialiasing.
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, images: Images) -> Images:
        """Change each image."""
        scale = (math.log(self.factor) * _uniform(len(images), like=images)).exp()
        zero = torch.zeros_like(scale)
        rows = torch.stack([torch.stack([1 / scale, zero, zero], 1), torch.stack([zero, 1 / scale, zero], 1)], 1)
        return _resample(images, rows, "border")


class RandomBlurNoise(nn.Module):
    """Blur each image by a Gaussian of uniformly drawn standard deviation up to `blur` pixels, and add Gaussian noise.

    The standard deviation of the noise is drawn uniformly up to `noise`.
    """

    def __init__(self, blur: float, noise: float) -> None:
        super().__init__()
        import kornia.augmentation as K

        size = 2 * max(1, math.ceil(3 * blur)) + 1
        self.noise = noise
        self.blur = K.RandomGaussianBlur((size, size), (1e-3, blur), border_type="replicate", p=1.0) if blur else None

    def forward(self, images: Images) -> Images:
        """Change each image."""
        if self.blur is not None:
            images = self.blur(images)
        if self.noise:
            sd = self.noise * torch.rand(len(images), 1, 1, 1, device=images.device, dtype=images.dtype)
            images = (images + sd * torch.randn_like(images)).clamp(0, 1)
        return images


class RandomDownscaleJpeg(nn.Module):
    """Shrink images, compress them as JPEG, and enlarge them again, in half of the batches.

    Each batch is shrunk by one log-uniform factor from 1 to `downscale`. Each image's JPEG quality is uniform from
    `jpeg` to 100.
    """

    def __init__(self, downscale: float, jpeg: int) -> None:
        super().__init__()
        self.downscale, self.jpeg = downscale, jpeg

    def forward(self, images: Images) -> Images:
        """Change the images."""
        if self.jpeg < 100 and images.shape[1] not in (1, 3):
            raise CapsellaError(
                f"jpeg: must be 100 for images that are not grey or RGB, got {images.shape[1]} channels"
            )
        share, half = torch.rand(2).tolist()
        if half < 0.5:
            return images
        size = images.shape[2:]
        fewer = [max(8, round(side / self.downscale**share)) for side in size]
        small = functional.interpolate(images, fewer, mode="bilinear", antialias=True, align_corners=False)
        if self.jpeg < 100:
            small = self._compressed(small)
        return functional.interpolate(small, size, mode="bicubic", align_corners=False).clamp(0, 1)

    def _compressed(self, images: Images) -> Images:
        from kornia.enhance import jpeg_codec_differentiable  # takes over a second to import

        quality = self.jpeg + (100 - self.jpeg) * torch.rand(len(images), device=images.device)
        rgb = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
        compressed: Tensor = jpeg_codec_differentiable(rgb.clamp(0, 1), quality.clamp(max=99))
        return compressed[:, :1] if images.shape[1] == 1 else compressed


def _resample(images: Images, matrices: Float[Tensor, "b 2 3"], padding_mode: str) -> Images:
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode=padding_mode, align_corners=False)


def _uniform(*shape: int, like: Tensor) -> Tensor:
    """Return numbers drawn uniformly from −1 to 1."""
    return 2 * torch.rand(shape, device=like.device, dtype=like.dtype) - 1


def _half_normal(number: int, device: torch.device) -> Tensor:
    """Return absolute values of normal numbers with standard deviation 1/3, clipped below 1."""
    return (torch.randn(number, device=device).abs() / 3).clamp(max=0.9999)
